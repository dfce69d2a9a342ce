/* 64-bit code without frame pointers, with an SFrame table. Its stack takes
 * several pages. */
#include "system.h"

NOINLINE void table_leaf(long rounds) { work(rounds); }
NOINLINE void table_kernel(long rounds) { call(SPIN, rounds, 0); sink++; }

NOINLINE void table_bottom(void)
{
    table_leaf(20000);
    table_kernel(20000);
    work(2000);
}

/* Locals of half a kilobyte: 24 levels take three pages. */
NOINLINE void table_deep(int level)
{
    volatile char locals[512];
    locals[level] = level;
    if (level > 1)
        table_deep(level - 1);
    else
        table_bottom();
    sink += locals[level];
}

/* A frame of variable size: the compiler uses rbp for it. */
NOINLINE void table_variable(int size)
{
    volatile char locals[size];
    locals[0] = size;
    table_leaf(500);
    sink += locals[0];
}

NOINLINE void table_top(void)
{
    table_deep(24);
    table_variable(16 + (sink & 15));
}

int main(void)
{
    for (;;)
        table_top();
}
