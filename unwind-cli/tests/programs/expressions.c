// Calls through functions whose CFA is an expression, as libraries and run-time systems have them:
// the stack pointer of before is in memory, behind one word or two, or on another stack, higher or
// lower than this one. Then it sleeps, or with an argument works without changes of stacks, with two
// arguments with them, with three by code that keeps its CFA in a register.
#include <stdio.h>
#include <unistd.h>

typedef void function(void);
void aligned(function *);
void chained(function *);
void switched(function *, void *stack_end);
void lent(function *, void *stack_end);
void saves(function *);

__asm__(".text\n"
        // CFA = *(rsp+16)+8, as libcrypto.
        ".globl aligned\n"
        ".type aligned, @function\n"
        "aligned:\n"
        "    .cfi_startproc\n"
        "    mov %rsp, %rax\n"
        "    .cfi_def_cfa_register %rax\n"
        "    sub $72, %rsp\n"
        "    and $-64, %rsp\n"
        "    mov %rax, 16(%rsp)\n"
        "    .cfi_escape 0x0f, 5, 0x77, 16, 0x06, 0x23, 8\n"
        "    call *%rdi\n"
        "    mov 16(%rsp), %rsp\n"
        "    .cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size aligned, .-aligned\n"
        // CFA = *(*(rsp+8)+16)+8, as OCaml 5's effect handlers.
        ".globl chained\n"
        ".type chained, @function\n"
        "chained:\n"
        "    .cfi_startproc\n"
        "    mov %rsp, %rax\n"
        "    .cfi_def_cfa_register %rax\n"
        "    sub $56, %rsp\n"
        "    mov %rax, 40(%rsp)\n"
        "    lea 24(%rsp), %rcx\n"
        "    mov %rcx, 8(%rsp)\n"
        "    .cfi_escape 0x0f, 8, 0x77, 8, 0x06, 0x23, 16, 0x06, 0x23, 8\n"
        "    call *%rdi\n"
        "    add $56, %rsp\n"
        "    .cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size chained, .-chained\n"
        // CFA = *(rsp)+8 on another stack, as OCaml 5's calls of C.
        ".globl switched\n"
        ".type switched, @function\n"
        "switched:\n"
        "    .cfi_startproc\n"
        "    .cfi_signal_frame\n"
        "    mov %rsp, %rax\n"
        "    .cfi_def_cfa_register %rax\n"
        "    lea -16(%rsi), %rsp\n"
        "    mov %rax, (%rsp)\n"
        "    .cfi_escape 0x0f, 5, 0x77, 0, 0x06, 0x23, 8\n"
        "    call *%rdi\n"
        "    mov (%rsp), %rsp\n"
        "    .cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size switched, .-switched\n"
        // CFA = rbx+16 on another stack, as code of OCaml 5 that calls C without a word to its run-time system.
        ".globl lent\n"
        ".type lent, @function\n"
        "lent:\n"
        "    .cfi_startproc\n"
        "    push %rbx\n"
        "    .cfi_def_cfa_offset 16\n"
        "    .cfi_offset %rbx, -16\n"
        "    mov %rsp, %rbx\n"
        "    .cfi_def_cfa_register %rbx\n"
        "    mov %rsi, %rsp\n"
        "    call *%rdi\n"
        "    mov %rbx, %rsp\n"
        "    .cfi_def_cfa_register %rsp\n"
        "    pop %rbx\n"
        "    .cfi_def_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size lent, .-lent\n"
        // Its caller's rbx is on the stack.
        ".globl saves\n"
        ".type saves, @function\n"
        "saves:\n"
        "    .cfi_startproc\n"
        "    push %rbx\n"
        "    .cfi_def_cfa_offset 16\n"
        "    .cfi_offset %rbx, -16\n"
        "    xor %ebx, %ebx\n"
        "    call *%rdi\n"
        "    pop %rbx\n"
        "    .cfi_def_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size saves, .-saves\n"
        ".section .note.GNU-stack, \"\", @progbits\n"
        ".text\n");

static char low[1 << 16] __attribute__((aligned(16)));
static char *high;
static int works, switches;
static volatile unsigned long sum;

#define NEXT(name, ...)                                                                            \
    __attribute__((noinline)) static void name(void) {                                             \
        __VA_ARGS__;                                                                               \
        __asm__ volatile("");                                                                      \
    }

NEXT(end, if (!works) { puts("ready"); fflush(stdout); } for (;;) if (works) sum += 1; else pause())
NEXT(on_high, aligned(end))
NEXT(on_low, switched(on_high, high))
NEXT(third, if (works && !switches) aligned(end); else switched(on_low, low + sizeof low))
NEXT(second, chained(third))
NEXT(first, aligned(second))
NEXT(kept_high, saves(end))
NEXT(calls_high, lent(kept_high, high))
NEXT(kept_low, saves(calls_high))
NEXT(kept, lent(kept_low, low + sizeof low))

int main(int count, char **arguments) {
    char part[1 << 14] __attribute__((aligned(16)));
    (void)arguments;
    works = count > 1;
    switches = count > 2;
    high = part + sizeof part;
    if (count > 3)
        kept();
    else
        first();
    return part[0];
}
