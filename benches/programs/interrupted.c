/* Computes for some seconds below a stack of some KiB, and measures when it does not: how often it
   is interrupted, the median time in nanoseconds, and all of it as parts of a million.

       interrupted FILE SECONDS KIB
*/
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 1 << 20, SHORTEST = 2000 };

static long interruptions[ROOM];

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

__attribute__((noinline)) static long measure(long length, double *share) {
    long count = 0, all = 0, begin = now(), last = begin;
    while (last - begin < length) {
        long time = now();
        if (time - last > SHORTEST && count < ROOM) {
            interruptions[count++] = time - last;
            all += time - last;
        }
        last = time;
    }
    *share = 1e6 * (double)all / (double)(last - begin);
    return count;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t bytes = (size_t)atol(argv[3]) << 10;
    /* What is not in memory is not copied. */
    volatile char *stack = memset(alloca(bytes), 1, bytes);
    double share;
    long count = measure((long)(atof(argv[2]) * 1e9), &share);
    qsort(interruptions, (size_t)count, sizeof *interruptions, compare);
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 1;
    fprintf(out, "%ld %ld %.0f\n", count, count ? interruptions[count / 2] : 0, share);
    return fclose(out) || stack[bytes - 1] != 1;
}
