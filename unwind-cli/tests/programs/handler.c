// Waits inside a signal handler that interrupted a known function. All
// functions of it keep a frame pointer. The handler returns to the C library's trampoline, or to
// the instructions OWN_TRAMPOLINE.
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

#ifdef OWN_TRAMPOLINE
__asm__(".text\n.p2align 4\n.type own_trampoline, @function\nown_trampoline:\n\t" OWN_TRAMPOLINE "\n\tud2\n.size own_trampoline, . - own_trampoline");
void own_trampoline(void);

// The kernel's.
struct kernel_sigaction {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask[2];
};

static void install(int flags) {
    struct kernel_sigaction action = {handler, flags | 0x04000000, own_trampoline, {0}};
    if (syscall(SYS_rt_sigaction, SIGTRAP, &action, 0, 8) != 0) exit(1);
}
#endif

int main(int argc, char **argv) {
    (void)argv;
    struct sigaction action = {0};
    action.sa_handler = handler;
#ifdef WITH_SIGINFO
    action.sa_flags = SA_SIGINFO;
#endif
#ifdef OWN_TRAMPOLINE
    install(action.sa_flags);
#else
    sigaction(SIGTRAP, &action, 0);
#endif
    return outer(argc);
}
