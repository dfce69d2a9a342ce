// A library whose function is chosen when it is first called: the choice waits inside the
// dynamic linker's lazy binding.
#include <sys/syscall.h>
#include <unistd.h>

int chosen_late(void);

static void *choose(void) {
    // By hand: this may be called before anything of the C library is bound.
    static const char ready[] = "ready\n";
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_write), "D"(1), "S"(ready), "d"(6)
                     : "rcx", "r11", "memory");
    for (;;)
        __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_pause) : "rcx", "r11", "memory");
#else
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(SYS_write), "b"(1), "c"(ready), "d"(6)
                     : "memory");
    for (;;)
        __asm__ volatile("int $0x80" : "=a"(result) : "0"(SYS_pause) : "memory");
#endif
}

int chosen_late(void) __attribute__((ifunc("choose")));
