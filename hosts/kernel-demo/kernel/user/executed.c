/* The program that is executed, and executes the first one again. */
#include "system.h"

NOINLINE void second_now(void) { call(EXEC, EXECUTES, 0); sink++; }
NOINLINE void second_inner(void) { work(20000); second_now(); sink++; }
NOINLINE void second_outer(void) { second_inner(); sink++; }

int main(void)
{
    second_outer();
    return 0;
}
