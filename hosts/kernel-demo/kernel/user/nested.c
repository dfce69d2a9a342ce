/* System calls from a signal handler, on top of one that was interrupted: two
 * kernel entries whose user stacks are nested in each other. */
#include "system.h"

/* Linux's trampoline: unwinders know it by these bytes. */
__asm__(".text\n"
        ".globl trampoline\n"
        ".type trampoline, @function\n"
        "trampoline:\n"
        "    .byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00\n"
        "    syscall\n"
        ".size trampoline, . - trampoline\n");
extern void trampoline(void);

NOINLINE void nested_leaf(long rounds) { work(rounds); }
NOINLINE void nested_kernel(long rounds) { call(SPIN, rounds, 0); sink++; }
NOINLINE void nested_inner(void) { nested_leaf(3000); nested_kernel(3000); work(300); }
NOINLINE void nested_handler(int number) { sink += number; nested_inner(); sink++; }
NOINLINE void nested_raise(void) { call(RAISE, 0, 0); sink++; }
NOINLINE void nested_outer(void) { nested_raise(); work(1000); sink++; }

int main(void)
{
    call(SIGACTION, (long)nested_handler, (long)trampoline);
    for (;;)
        nested_outer();
}
