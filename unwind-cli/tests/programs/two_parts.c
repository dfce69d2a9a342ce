// Spends a fifth of its time in one function and the rest in another; with a second argument
// about half in each. The first is the time in seconds.
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;

__attribute__((noinline)) static void grows(int rounds) {
    unsigned long x = sink;
    for (int i = 0; i < rounds; i++) x = x * 6364136223846793005ul + 1442695040888963407ul;
    sink = x;
}

__attribute__((noinline)) static void stays(void) {
    unsigned long x = sink;
    for (int i = 0; i < 40000; i++) x = x * 6364136223846793005ul + 1442695040888963407ul;
    sink = x + 1;
}

int main(int argc, char **argv) {
    clock_t end = clock() + (clock_t)(atof(argv[1]) * CLOCKS_PER_SEC);
    while (clock() < end) {
        grows(argc > 2 ? 40000 : 10000);
        stays();
    }
    return 0;
}
