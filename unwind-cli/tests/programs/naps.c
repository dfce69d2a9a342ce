// A thread that sleeps for 0 to 28 ms, by turns below ten calls of left and below ten of right,
// and one that never sleeps. Says "ready" and runs until standard input ends.
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static void nap(void) {
    static unsigned turn;
    struct timespec limit = {0, turn++ % 8 * 4000000L};
    nanosleep(&limit, 0);
}

NOINLINE long left(long depth) {
    volatile long keep[4] = {depth};
    if (depth == 0) nap();
    else keep[1] = left(depth - 1);
    return keep[0] + keep[1];
}

NOINLINE long right(long depth) {
    volatile long keep[4] = {depth};
    if (depth == 0) nap();
    else keep[1] = right(depth - 1);
    return keep[0] + keep[1];
}

static void *naps(void *unused) {
    for (;;) {
        left(9);
        right(9);
    }
    return unused;
}

static void *computes(void *unused) {
    for (volatile unsigned long count = 0;; count++) {}
    return unused;
}

int main(void) {
    pthread_t thread;
    char byte;
    if (pthread_create(&thread, 0, naps, 0) || pthread_create(&thread, 0, computes, 0)) return 1;
    puts("ready");
    fflush(stdout);
    return read(0, &byte, 1) != 0;
}
