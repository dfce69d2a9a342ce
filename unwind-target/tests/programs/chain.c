// A thread at a known place, whose name is told before it sleeps there.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static inline __attribute__((always_inline)) void inlined(void) {
    pause();
}

__attribute__((noinline)) static void innermost(void) {
    inlined();
    __asm__ volatile("");
}

__attribute__((noinline)) static void outer(void) {
    innermost();
    __asm__ volatile("");
}

static void *work(void *nothing) {
    outer();
    return nothing;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    puts("ready");
    fflush(stdout);
    pthread_join(thread, 0);
    return 0;
}
