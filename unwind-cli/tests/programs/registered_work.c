// Works for a second of CPU time, also in a function that the C library calls; to be executed by a compiler that makes
// its code while it runs, without frame pointers.
#include <stdlib.h>
#include <time.h>

static volatile int steps;

static inline int inlined(int number) {
    while (number > 0) {
        steps++;
        number--;
    }
    return steps & 1;
}

__attribute__((noinline)) static int compare(const void *one, const void *other) {
    return inlined(1000) + *(const int *)one - *(const int *)other;
}

__attribute__((noinline)) int sorted(int number) {
    int numbers[8] = {3, number, 5, 2, 9, 1, 7, 4};
    qsort(numbers, 8, sizeof *numbers, compare);
    return numbers[0] + 1;
}

__attribute__((noinline)) int recursive(int depth) {
    return (depth > 0 ? recursive(depth - 1) : sorted(depth)) + 1;
}

int main(void) {
    volatile int sum = 0;
    while (clock() < CLOCKS_PER_SEC) sum += recursive(3);
    return 0;
}
