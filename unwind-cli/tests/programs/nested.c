// Spends its time at the end of a chain of calls, for as many seconds as it is told.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;

__attribute__((noinline)) static unsigned long innermost(unsigned long x) {
    for (int i = 0; i < 1000; i++) x = x * 6364136223846793005ul + 1442695040888963407ul;
    sink = x;
    return x;
}

__attribute__((noinline)) static unsigned long nested(unsigned depth, unsigned long x) {
    unsigned long result = depth ? nested(depth - 1, x) + 1 : innermost(x);
    sink = result;
    return result ^ x;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    unsigned long x = 1;
    puts("ready");
    fflush(stdout);
    while (clock() < end) x = nested(10, x) + 3;
    return 0;
}
