/* Recursion that takes another way each time, with work in libc or here at its
   ends. Compiled with and without frame pointers.

       recursion ROUNDS [PIECE]

   With PIECE it writes an empty line after each PIECE rounds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many percent more own_work does, which others see nothing of. */
#ifndef OWN_MORE
#define OWN_MORE 0
#endif

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

typedef uint64_t way(unsigned depth, uint64_t value);
static way first, second, third, fourth;
static way *const ways[4] = {first, second, third, fourth};

static int compare(const void *a, const void *b) {
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

__attribute__((noinline)) static uint64_t own_work(uint64_t value) {
    for (int i = 0; i < 400; i++)
        value = value * 6364136223846793005u + (value >> 7);
    uint64_t more = value;
    for (int i = 0; i < 4 * OWN_MORE; i++)
        more = more * 6364136223846793005u + (more >> 7);
    __asm__ volatile("" : : "r"(more));
    return value;
}

__attribute__((noinline, unused)) static uint64_t libc_work(uint64_t value) {
    uint32_t numbers[64];
    char text[64];
    for (int i = 0; i < 64; i++)
        numbers[i] = (uint32_t)(value = value * 6364136223846793005u + 1);
    qsort(numbers, 64, sizeof *numbers, compare);
    snprintf(text, sizeof text, "%u %g", numbers[7], (double)numbers[9]);
    return value ^ strtoull(text, NULL, 10);
}

__attribute__((noinline)) static uint64_t leaf(uint64_t value) {
#ifdef OWN_WORK
    return own_work(value);
#else
    return next() & 1 ? own_work(value) : libc_work(value);
#endif
}

static uint64_t go(unsigned depth, uint64_t value) {
    return depth ? ways[next() & 3](depth - 1, value) : leaf(value);
}

__attribute__((noinline)) static uint64_t first(unsigned depth, uint64_t value) {
    return go(depth, value + 1) + 1;
}

__attribute__((noinline)) static uint64_t second(unsigned depth, uint64_t value) {
    volatile uint64_t kept[3] = {value, depth, 7};
    return go(depth, value ^ kept[2]) + kept[0];
}

__attribute__((noinline)) static uint64_t third(unsigned depth, uint64_t value) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < 1 + (depth % 7 == 3); i++)
        sum += go(depth, value + sum);
    return sum;
}

__attribute__((noinline)) static uint64_t fourth(unsigned depth, uint64_t value) {
    char text[96];
    memset(text, (int)value, sizeof text);
    return go(depth, value) + (unsigned char)text[depth % sizeof text];
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    unsigned piece = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    uint64_t sum = 0;
    for (unsigned i = 0; i < rounds; i++) {
        sum += ways[next() & 3](5 + next() % 120, i);
        if (piece && i % piece == 0 && write(1, "\n", 1) != 1)
            return 1;
    }
    printf("%llu\n", (unsigned long long)sum);
}
