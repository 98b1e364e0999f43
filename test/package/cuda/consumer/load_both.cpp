// load_both LIBRARY FUNCTION LIBRARY FUNCTION: one program with two shared libraries that both hold the same kernels,
// and see each other's symbols.
#include <cstdio>

#include <dlfcn.h>

int main(int count, char** arguments) {
    for (int i = 1; i + 1 < count; i += 2) {
        void* const library = dlopen(arguments[i], RTLD_NOW | RTLD_GLOBAL);
        void* const found = library == nullptr ? nullptr : dlsym(library, arguments[i + 1]);
        if (found == nullptr) {
            std::printf("%s\n", dlerror());
            return 1;
        }
    }
    for (int i = 1; i + 1 < count; i += 2) {
        std::printf("%s\n", arguments[i + 1]);
        const auto run = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, arguments[i + 1]));
        if (run() != 0) return 1;
    }
    return count == 5 ? 0 : 1;
}
