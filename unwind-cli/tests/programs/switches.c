// Calls a function on another stack, by code whose tables and frame pointer say nothing of it,
// and sleeps there.
#include <stdio.h>
#include <unistd.h>

void call_on(void *stack_end, void (*function)(void));

// The old stack pointer is the first word of the new stack.
__asm__(".text\n"
        ".globl call_on\n"
        ".type call_on, @function\n"
        "call_on:\n"
        "    mov %rsp, -16(%rdi)\n"
        "    lea -16(%rdi), %rsp\n"
        "    call *%rsi\n"
        "    pop %rsp\n"
        "    ret\n"
        ".size call_on, .-call_on\n");

static char stack[1 << 16] __attribute__((aligned(16)));

__attribute__((noinline)) static void on_other_stack(void) {
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

__attribute__((noinline)) static void caller(void) {
    call_on(stack + sizeof stack, on_other_stack);
    __asm__ volatile("");
}

int main(void) {
    caller();
    return 0;
}
