// Waits in code that it made itself, as a just-in-time compiler does; the code
// keeps a frame pointer.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// push rbp; mov rbp, rsp; call rdi; pop rbp; ret
static const unsigned char call_it[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};

__attribute__((noinline)) void park(void) {
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(34L) : "rcx", "r11", "memory");
}

int main(void) {
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || write(1, "ready\n", 6) != 6) return 1;
    memcpy(code, call_it, sizeof call_it);
    void (*generated)(void (*)(void));
    memcpy(&generated, &code, sizeof code);
    generated(park);
    return 0;
}
