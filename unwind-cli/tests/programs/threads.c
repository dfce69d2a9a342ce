// Twenty threads, each below a chain of its own depth of functions that keep a
// frame pointer.
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 20 };

__attribute__((noinline)) long park(void) {
    // Leaf functions get a frame only if they ask where it is.
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_pause) : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline)) long descend(long depth) {
    volatile long keep = depth;
    long result = depth == 0 ? park() : descend(depth - 1);
    return result + keep;
}

static pthread_barrier_t all_started;

__attribute__((noinline)) void *work(void *depth) {
    pthread_barrier_wait(&all_started);
    return (void *)descend((intptr_t)depth);
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_started, 0, THREADS + 1);
    for (intptr_t depth = 0; depth < THREADS; depth++)
        if (pthread_create(&threads[depth], 0, work, (void *)depth)) return 1;
    pthread_barrier_wait(&all_started);
    if (write(1, "ready\n", 6) != 6) return 1;
    park();
    return 0;
}
