// Waits in a function whose row is wrong: WRONG is what it says of its CFA, in the
// assembler's words, in place of 8 bytes above the stack pointer.
#include <unistd.h>

void park(void);

#define TEXT(...) TEXT_OF(__VA_ARGS__)
#define TEXT_OF(...) #__VA_ARGS__

__asm__(
    ".text\n"
    ".globl park\n"
    ".type park, @function\n"
    "park:\n"
    ".cfi_startproc\n" TEXT(WRONG) "\n"
    "mov $34, %eax\n"
    "syscall\n"
    // Debuggers know what `ret` does.
    "nop\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size park, . - park\n");

int main(void) {
    if (write(1, "ready\n", 6) != 6) return 1;
    park();
    return 0;
}
