// Waits inside a signal handler that interrupted a known function. All
// functions of it keep a frame pointer.
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) void park(void) {
    // Leaf functions get a frame only if they ask where it is.
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    for (;;) {
#if defined(__x86_64__)
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_pause) : "rcx", "r11", "memory");
#else
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "0"((long)SYS_pause) : "memory");
#endif
    }
}

__attribute__((noinline)) void handler(int number) {
    if (number != SIGTRAP || write(1, "ready\n", 6) != 6) exit(1);
    park();
}

__attribute__((noinline)) int interrupted(int value) {
    __asm__ volatile("int3\n\tnop" : : "r"(__builtin_frame_address(0)) : "memory");
    return value + 1;
}

__attribute__((noinline)) int outer(int value) { return interrupted(value) + 1; }

int main(int argc, char **argv) {
    (void)argv;
    struct sigaction action = {0};
    action.sa_handler = handler;
#ifdef WITH_SIGINFO
    action.sa_flags = SA_SIGINFO;
#endif
    sigaction(SIGTRAP, &action, 0);
    return outer(argc);
}
