/* Threads that wait, each below eight calls. Says "ready" and waits until it is ended.
 *
 *     waiting THREADS
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static pthread_barrier_t started;

NOINLINE long descend(long depth)
{
    volatile long keep = depth;
    if (depth > 0)
        return descend(depth - 1) + keep;
    pthread_barrier_wait(&started);
    pause();
    return keep;
}

static void *run(void *unused)
{
    descend(8);
    return unused;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64 << 10);
    pthread_barrier_init(&started, 0, (unsigned)threads);
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, run, NULL) != 0)
            return 1;
    }
    pthread_barrier_wait(&started);
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
