// Waits for bytes and sends them back, below a chain of functions that all keep
// a frame pointer. Any sign that the wait was disturbed ends it with code 1.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define SYSCALL "syscall"
#define ARG1 "D"
#define ARG2 "S"
#define CLOBBER "rcx", "r11", "memory"
#else
#define SYSCALL "int $0x80"
#define ARG1 "b"
#define ARG2 "c"
#define CLOBBER "memory"
#endif

// The system call is made here and not in the C library, whose functions keep
// no frame pointer.
__attribute__((noinline)) long receive(char *byte) {
    // Leaf functions get a frame only if they ask where it is.
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile(SYSCALL : "=a"(result) : "0"((long)SYS_read), ARG1(0L), ARG2(byte), "d"(1L) : CLOBBER);
    return result;
}

__attribute__((noinline)) int serve(void) {
    for (;;) {
        char byte;
        long got = receive(&byte);
        if (got == 0) return 0;
        if (got != 1 || write(1, &byte, 1) != 1) return 1;
    }
}

__attribute__((noinline)) int descend(int depth) {
    volatile int keep = depth;
    int result = depth == 0 ? serve() : descend(depth - 1);
    return result + (keep - depth);
}

int main(int argc, char **argv) {
    int depth = argc > 1 ? atoi(argv[1]) : 3;
    if (write(1, "ready\n", 6) != 6) return 1;
    return descend(depth);
}
