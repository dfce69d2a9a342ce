// A program without libgcc, which loads a library that has it: what that throws it also catches.
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : 0;
    int (*catches)(void) = library ? (int (*)(void))dlsym(library, "catches") : 0;
    if (!catches) {
        fputs(dlerror(), stderr);
        return 1;
    }
    return catches() == 7 ? 0 : 1;
}
