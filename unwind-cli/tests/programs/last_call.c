// Sleeps in what a function without a symbol calls last, right before another function begins.
#include <stdio.h>
#include <unistd.h>

void enters(void);

__attribute__((noinline, used)) void sleeps(void) {
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

__asm__(".text\n"
        ".globl enters\n"
        ".type enters, @function\n"
        "enters:\n"
        "    .cfi_startproc\n"
        "    sub $8, %rsp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    call .Lhidden\n"
        "    add $8, %rsp\n"
        "    .cfi_def_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size enters, .-enters\n"
        ".Lhidden:\n"
        "    .cfi_startproc\n"
        "    sub $8, %rsp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    call sleeps\n"
        "    .cfi_endproc\n"
        ".globl next\n"
        ".type next, @function\n"
        "next:\n"
        "    ret\n"
        ".size next, .-next\n");

int main(void) {
    enters();
    return 0;
}
