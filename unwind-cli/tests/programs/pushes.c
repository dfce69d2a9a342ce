/* 32-bit code that pushes a register without call frame information for it, as glibc's
   `memcpy` does, and is nearly always stopped there. */
char buffer[1 << 16];

void fill(char *start, unsigned bytes);

__asm__(".text\n"
        ".globl fill\n"
        ".type fill, @function\n"
        "fill:\n"
        "    .cfi_startproc\n"
        "    movl %edi, %edx\n"
        "    movl 4(%esp), %edi\n"
        "    movl 8(%esp), %ecx\n"
        "    pushl %ebx\n"
        "    xorl %eax, %eax\n"
        "    rep stosb\n"
        "    movl %edx, %edi\n"
        "    popl %ebx\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size fill, .-fill\n"
        ".section .note.GNU-stack,\"\",@progbits\n"
        ".text\n");

int main(void) {
    for (int i = 0; i < 300000; i++)
        fill(buffer, sizeof buffer);
    return buffer[7];
}
