/* Says that the program runs, and calls it. A file of its own: version 1 of
 * SFrame cannot say that _start has no caller, so it gets no table. */

    .section .rodata
booted:
    .ascii "BOOTED\n"

    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
#ifdef __x86_64__
    .cfi_undefined rip
    xorl %ebp, %ebp
    movl $1, %eax
    movl $1, %edi
    movq $booted, %rsi
    movl $7, %edx
    syscall
    andq $-16, %rsp
#else
    .cfi_undefined eip
    xorl %ebp, %ebp
    movl $4, %eax
    movl $1, %ebx
    movl $booted, %ecx
    movl $7, %edx
    int $0x80
    andl $-16, %esp
#endif
    call main
    hlt
    .cfi_endproc
    .size _start, . - _start

    .section .note.GNU-stack, "", @progbits
