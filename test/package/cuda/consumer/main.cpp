#include "run_engine.hpp"

int main() {
    return run_engine();
}
