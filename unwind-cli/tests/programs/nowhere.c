// Waits in code without call frame information and without a frame, where the frame pointer leads
// nowhere.
__asm__(
    ".text\n.p2align 4\n.globl waits\n.type waits, @function\nwaits:\n"
    "\tmov $8, %rbp\n"
    "\tmov $1, %eax\n\tmov $1, %edi\n\tlea ready(%rip), %rsi\n\tmov $6, %edx\n\tsyscall\n"
    "1:\tmov $34, %eax\n\tsyscall\n\tjmp 1b\n"
    ".size waits, . - waits\n"
    ".section .rodata\nready:\t.ascii \"ready\\n\"\n.text");
void waits(void);

int main(void) {
    waits();
    return 0;
}
