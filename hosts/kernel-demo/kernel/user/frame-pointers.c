/* 64-bit code that keeps frame pointers. */
#include "system.h"

NOINLINE void fp_leaf(long rounds) { work(rounds); }
NOINLINE void fp_kernel(long rounds) { call(SPIN, rounds, 0); sink++; }
NOINLINE void fp_inner(void) { fp_leaf(3000); fp_kernel(3000); work(300); }
NOINLINE void fp_outer(void) { fp_inner(); sink++; }
NOINLINE void fp_bottom(void) { work(2000); call(YIELD, 0, 0); sink++; }
NOINLINE void fp_deep(int level) { if (level > 1) fp_deep(level - 1); else fp_bottom(); sink++; }

int main(void)
{
    for (;;) {
        fp_outer();
        fp_deep(12);
    }
}
