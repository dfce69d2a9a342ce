// Waits below code that it made itself, which has no table: with the argument `frame`
// that code keeps a frame pointer, else it keeps none and leaves its caller's in the
// register.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Both go to their return by a register, so that their instructions do not prove where it is.
// push rbp; lea rbp, [rsp]; call rdi; lea rax, [rip+2]; jmp rax; pop rbp; ret
static const unsigned char frame[] = {0x55, 0x48, 0x8d, 0x2c, 0x24, 0xff, 0xd7, 0x48, 0x8d,
                                      0x05, 0x02, 0x00, 0x00, 0x00, 0xff, 0xe0, 0x5d, 0xc3};
// sub rsp, 8; call rdi; lea rax, [rip+2]; jmp rax; add rsp, 8; ret
static const unsigned char bare[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x8d, 0x05, 0x02,
                                     0x00, 0x00, 0x00, 0xff, 0xe0, 0x48, 0x83, 0xc4, 0x08, 0xc3};

__attribute__((noinline)) void park(void) {
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(34L) : "rcx", "r11", "memory");
}

__attribute__((noinline)) int skipped(void (*generated)(void (*)(void))) {
    generated(park);
    return 1;
}

int main(int argc, char **argv) {
    int is_frame = argc > 1 && strcmp(argv[1], "frame") == 0;
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || write(1, "ready\n", 6) != 6) return 1;
    if (is_frame)
        memcpy(code, frame, sizeof frame);
    else
        memcpy(code, bare, sizeof bare);
    void (*generated)(void (*)(void));
    memcpy(&generated, &code, sizeof code);
    return skipped(generated) - 1;
}
