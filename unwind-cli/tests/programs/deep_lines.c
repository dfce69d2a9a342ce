// Waits, with DWARF that says that as many functions are inlined in each other as there are
// bytes of it.
#include <unistd.h>

__asm__(
    ".section .debug_abbrev,\"\",@progbits\n"
    // 1: a unit, with children, its code and its lines
    ".byte 1, 0x11, 1, 0x11, 0x01, 0x12, 0x06, 0, 0\n"
    // 2: a function, with children, and its code
    ".byte 2, 0x2e, 1, 0x11, 0x01, 0x12, 0x06, 0, 0\n"
    // 3: an inlined function, with children, and nothing else
    ".byte 3, 0x1d, 1, 0, 0\n"
    ".byte 0\n"
    ".section .debug_info,\"\",@progbits\n"
    ".long 2f - 1f\n"
    "1: .short 4\n"
    ".long 0\n"
    ".byte 8\n"
    ".byte 1\n"
    ".quad main\n"
    ".long 256\n"
    ".byte 2\n"
    ".quad main\n"
    ".long 256\n"
    ".fill 20000000, 1, 3\n"
    "2:\n"
    ".text\n");

int main(void) {
    long result;
    if (write(1, "ready\n", 6) != 6) return 1;
    __asm__ volatile("syscall" : "=a"(result) : "0"(34L) : "rcx", "r11", "memory");
    return result != 0;
}
