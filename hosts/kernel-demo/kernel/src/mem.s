# What the prebuilt core expects of a C library, and what it refers to without
# ever using it when panics abort. The notes on frames become rows of the
# kernel's own SFrame table.

    .macro function name
    .type \name, @function
\name:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    .endm

    .macro end name
    popq %rbp
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    .text
    .globl memcpy, memmove, memset, memcmp, bcmp, rust_eh_personality, _Unwind_Resume
function memmove
    movq %rdi, %rax
    movq %rdi, %rcx
    subq %rsi, %rcx
    cmpq %rdx, %rcx
    jb 1f                       # unsigned (to - from) < bytes: backward
    movq %rdx, %rcx
    rep movsb
    jmp 2f
1:  leaq -1(%rdi,%rdx), %rdi
    leaq -1(%rsi,%rdx), %rsi
    movq %rdx, %rcx
    std
    rep movsb
    cld
2:
end memmove

function memcpy
    movq %rdi, %rax
    movq %rdx, %rcx
    shrq $3, %rcx
    rep movsq
    movl %edx, %ecx
    andl $7, %ecx
    rep movsb
end memcpy

function memset
    movq %rdi, %r8
    movzbl %sil, %eax
    movabsq $0x0101010101010101, %rcx
    imulq %rcx, %rax
    movq %rdx, %rcx
    shrq $3, %rcx
    rep stosq
    movl %edx, %ecx
    andl $7, %ecx
    rep stosb
    movq %r8, %rax
end memset

bcmp:
function memcmp
    xorl %eax, %eax
1:  testq %rdx, %rdx
    jz 2f
    movzbl (%rdi), %eax
    movzbl (%rsi), %ecx
    incq %rdi
    incq %rsi
    decq %rdx
    subl %ecx, %eax
    jz 1b
2:
end memcmp

rust_eh_personality:
_Unwind_Resume:
    ud2
