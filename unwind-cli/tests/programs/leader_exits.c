// The first thread ends, another continues below a known chain of functions.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) long park(void) {
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_pause) : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline)) void *survive(void *unused) {
    char stat;
    (void)unused;
    // Ready once the first thread is a zombie; the test waits for that too.
    stat = write(1, "ready\n", 6) == 6;
    return (void *)(park() + stat);
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, survive, 0)) return 1;
    pthread_exit(0);
}
