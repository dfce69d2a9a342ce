/* 32-bit code that keeps frame pointers. */
#include "system.h"

NOINLINE void compat_leaf(long rounds) { work(rounds); }
NOINLINE void compat_kernel(long rounds) { call(SPIN, rounds, 0); sink++; }
NOINLINE void compat_inner(void) { compat_leaf(4000); compat_kernel(4000); work(400); }
NOINLINE void compat_outer(void) { compat_inner(); sink++; }

NOINLINE void compat_deep(int level)
{
    if (level > 1)
        compat_deep(level - 1);
    else
        compat_outer();
    sink++;
}

int main(void)
{
    for (;;)
        compat_deep(8);
}
