/* Eight functions of different work, each of which takes a part of the time. The first argument says how
   many rounds, the second how many percent more one of them, `look_up`, does: no other function sees what
   comes of that. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION __attribute__((noinline)) static uint64_t

enum { ENTRIES = 1 << 15, BYTES = 4096 };

static uint32_t table[ENTRIES];
static unsigned char text[BYTES], copy[BYTES];

FUNCTION multiply(int count, uint64_t value) {
    for (int i = 0; i < count; i++)
        value = value * 6364136223846793005u + 1442695040888963407u;
    return value;
}

FUNCTION divide(int count, uint64_t value) {
    for (int i = 1; i <= count; i++)
        value += (value | 1) / (uint64_t)(i * 7);
    return value;
}

static volatile uint64_t unused;

FUNCTION look_up(int count, int more, uint64_t value) {
    uint64_t result = value;
    for (int i = 0; i < count + more; i++) {
        value = table[value % ENTRIES] + (value >> 9);
        if (i == count - 1)
            result = value;
    }
    /* What comes next waits for that, and gets the same. */
    unused = value;
    return result + (unused - value);
}

FUNCTION choose(int count, uint64_t value) {
    for (int i = 0; i < count; i++) {
        value ^= value << 13, value ^= value >> 7, value ^= value << 17;
        if (value & 64)
            value += 3;
    }
    return value;
}

FUNCTION copy_text(int count, uint64_t value) {
    for (int i = 0; i < count; i++) {
        text[i % BYTES] = (unsigned char)value;
        for (int at = 0; at < 256; at++)
            copy[at] = text[at] ^ (unsigned char)i;
        value += copy[value % 256];
    }
    return value;
}

FUNCTION count_bits(int count, uint64_t value) {
    uint64_t bits = 0;
    for (int i = 0; i < count; i++)
        for (uint64_t left = value + (uint64_t)i * 0x9e3779b97f4a7c15u; left; left &= left - 1)
            bits++;
    return value + bits;
}

FUNCTION add_up(int count, uint64_t value) {
    double sum = (double)(value % 1000);
    for (int i = 1; i < count; i++)
        sum += 1.0 / (double)i;
    return value + (uint64_t)sum;
}

FUNCTION sort_some(int count, uint64_t value) {
    uint32_t numbers[48];
    for (int i = 0; i < count; i++) {
        for (int at = 0; at < 48; at++)
            numbers[at] = (uint32_t)(value = value * 6364136223846793005u + 1);
        for (int at = 1; at < 48; at++) {
            uint32_t number = numbers[at];
            int to = at;
            for (; to > 0 && numbers[to - 1] > number; to--)
                numbers[to] = numbers[to - 1];
            numbers[to] = number;
        }
        value += numbers[7];
    }
    return value;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int rounds = atoi(argv[1]), more = atoi(argv[2]);
    uint64_t value = 88172645463325252u;
    for (int i = 0; i < ENTRIES; i++)
        table[i] = (uint32_t)(value = value * 6364136223846793005u + 1);
    for (int round = 0; round < rounds; round++) {
        value = multiply(3000, value);
        value = divide(400, value);
        value = look_up(1000, 10 * more, value);
        value = choose(800, value);
        value = copy_text(60, value);
        value = count_bits(60, value);
        value = add_up(900, value);
        value = sort_some(4, value);
    }
    printf("%llu\n", (unsigned long long)value);
}
