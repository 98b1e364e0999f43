// The main() of every test executable, compiled once. Signals are left alone: one of them is what an emulated matrix
// unit lives on, and the entry of a test that dies of another says so.
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
