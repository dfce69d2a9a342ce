// Threads that wait for some time each: one sleeps, one wants a lock that another one holds, one
// reads from a pipe that is filled slowly. Each writes its name, how long it ran from its first line to its
// last by the clock of the wall, and how much of that by its CPU's, in nanoseconds.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 25
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int pipes[2];
static volatile long sum;

static long long now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void pause_for(long ms) {
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

__attribute__((noinline)) static void computes(void) {
    for (int i = 0; i < 200000; i++) sum += i;
}

__attribute__((noinline)) static void sleeps(void) {
    pause_for(20);
    sum++;
}

__attribute__((noinline)) static void locks(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    // Until another one has it again.
    pause_for(4);
    sum++;
}

__attribute__((noinline)) static void reads(void) {
    char byte;
    if (read(pipes[0], &byte, 1) != 1) sum++;
    sum++;
}

struct job {
    const char *name;
    void (*waits)(void);
};

static void *run(void *argument) {
    struct job *job = argument;
    pthread_setname_np(pthread_self(), job->name);
    long long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < ROUNDS; i++) {
        computes();
        job->waits();
    }
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    // What it waits for from here on is not of this time.
    pthread_setname_np(pthread_self(), "done");
    printf("%s %lld %lld\n", job->name, wall, cpu);
    return NULL;
}

int main(void) {
    static struct job jobs[] = {{"sleeper", sleeps}, {"locker", locks}, {"reader", reads}};
    pthread_t threads[3];
    if (pipe(pipes)) return 1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, run, &jobs[i])) return 1;
    for (int i = 0; i < ROUNDS; i++) {
        pause_for(20);
        if (write(pipes[1], "x", 1) != 1) return 1;
        pthread_mutex_unlock(&lock);
        pause_for(2);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return 0;
}
