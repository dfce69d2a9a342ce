// Computes for 0.2 s of CPU time and sleeps for 0.3 s, twice, while a thread waits for it.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static volatile long sum;
static int pipes[2];

__attribute__((noinline)) static void computes(void) {
    struct timespec start, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    long milliseconds;
    do {
        for (int i = 0; i < 10000; i++) sum += i;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        milliseconds =
            (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
    } while (milliseconds < 200);
}

__attribute__((noinline)) static void sleeps(void) {
    struct timespec time = {0, 300000000};
    nanosleep(&time, NULL);
    sum++;
}

__attribute__((noinline)) static void waits_in_pipe(void) {
    char byte;
    if (read(pipes[0], &byte, 1) != 1) sum++;
    sum++;
}

static void *reader(void *unused) {
    for (int i = 0; i < 2; i++) waits_in_pipe();
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pipe(pipes) || pthread_create(&thread, NULL, reader, NULL)) return 1;
    for (int i = 0; i < 2; i++) {
        computes();
        sleeps();
        if (write(pipes[1], "x", 1) != 1) return 1;
    }
    return pthread_join(thread, NULL);
}
