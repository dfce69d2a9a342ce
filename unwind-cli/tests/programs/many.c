// many threads N: N threads that compute at the same time.
// many forks N ROUNDS: N processes that compute for ROUNDS, or 100,000, one after the other.
// many deep N KIB: computes for N hundredths of a second under KIB of stack, or 40.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile long sum;

static void *compute(void *rounds) {
    for (long i = 0; i < (long)rounds; i++) sum += i;
    return NULL;
}

__attribute__((noinline)) static void deep(long hundredths, size_t bytes) {
    volatile char room[bytes];
    // What is not in memory is not copied.
    for (size_t at = 0; at < bytes; at++) room[at] = 0;
    struct timespec now;
    do {
        compute((void *)10000);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while (now.tv_sec * 100 + now.tv_nsec / 10000000 < hundredths);
    room[bytes - 1] = 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = atol(argv[2]);
    if (strcmp(argv[1], "deep") == 0) {
        deep(count, (size_t)(argc > 3 ? atol(argv[3]) : 40) << 10);
    } else if (strcmp(argv[1], "threads") == 0) {
        pthread_t *threads = calloc(count, sizeof *threads);
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 64 << 10);
        for (long at = 0; at < count; at++)
            if (pthread_create(&threads[at], &small, compute, (void *)1000000)) return 1;
        for (long at = 0; at < count; at++) pthread_join(threads[at], NULL);
    } else {
        void *rounds = (void *)(argc > 3 ? atol(argv[3]) : 100000);
        for (long at = 0; at < count; at++) {
            pid_t child = fork();
            if (child == 0) _exit(compute(rounds) != NULL);
            if (child < 0 || waitpid(child, NULL, 0) != child) return 1;
        }
    }
    return 0;
}
