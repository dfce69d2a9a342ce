/* Twenty threads: some compute in recursions of different depth, the others
 * wait, each in another way. Says "ready" and runs until standard input ends. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define THREADS 20

static pthread_mutex_t locked = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t empty;
static sem_t started;
static int quiet[2];

static int compare(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* The callbacks of qsort run below a function of libc. */
NOINLINE int sort(unsigned seed)
{
    int values[64];
    for (int i = 0; i < 64; i++)
        values[i] = (int)((seed = seed * 1103515245 + 12345) >> 8);
    qsort(values, 64, sizeof *values, compare);
    return values[0];
}

NOINLINE int compute(int depth, unsigned seed)
{
    volatile int keep = depth;
    if (depth > 0)
        return compute(depth - 1, seed * 3 + 1) + keep;
    unsigned x = seed;
    for (int i = 0; i < 20000; i++)
        x = x * 1664525 + 1013904223;
    return sort(x) + keep;
}

NOINLINE void wait_somehow(int way, int depth)
{
    volatile int keep = depth;
    char byte;
    struct timespec hour = {3600, 0};
    struct pollfd fd = {quiet[0], POLLIN, 0};
    if (depth > 0) {
        wait_somehow(way, depth - 1);
        keep = keep + 1;
        return;
    }
    switch (way) {
    case 0: nanosleep(&hour, NULL); break;
    case 1: pthread_mutex_lock(&locked); break;
    case 2: sem_wait(&empty); break;
    case 3: poll(&fd, 1, -1); break;
    case 4: keep = (int)read(quiet[0], &byte, 1); break;
    case 5: pause(); break;
    default:
        pthread_mutex_lock(&mutex);
        pthread_cond_wait(&never, &mutex);
    }
}

static void *run(void *argument)
{
    int number = (int)(intptr_t)argument;
    unsigned seed = (unsigned)number;
    sem_post(&started);
    if (number % 2)
        wait_somehow(number / 2 % 7, number);
    else
        while (1)
            seed += (unsigned)compute(number, seed);
    return NULL;
}

int main(void)
{
    char byte;
    pthread_mutex_lock(&locked);
    sem_init(&empty, 0, 0);
    sem_init(&started, 0, 0);
    if (pipe(quiet) != 0)
        return 1;
    for (int i = 1; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, (void *)(intptr_t)i) != 0)
            return 1;
    }
    for (int i = 1; i < THREADS; i++)
        sem_wait(&started);
    puts("ready");
    fflush(stdout);
    return read(0, &byte, 1) != 0;
}
