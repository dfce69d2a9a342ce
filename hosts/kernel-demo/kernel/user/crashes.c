/* Reads where nothing is. */
#include "system.h"

NOINLINE void crash_now(void) { work(*(volatile long *)0x123456789000); }
NOINLINE void crash_outer(void) { work(20000); CHECK_X87(1111); crash_now(); sink++; }

int main(void)
{
    KEEP_IN_X87(1111);
    crash_outer();
    return 0;
}
