/* Executes another program from deep down. */
#include "system.h"

NOINLINE void exec_now(void) { call(EXEC, EXECUTED, 0); sink++; }
NOINLINE void exec_inner(void) { work(20000); exec_now(); sink++; }
NOINLINE void exec_outer(void) { exec_inner(); sink++; }

int main(void)
{
    exec_outer();
    return 0;
}
