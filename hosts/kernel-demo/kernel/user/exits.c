/* Ends from deep down, with a request pending. */
#include "system.h"

NOINLINE void exit_now(void) { call(EXIT, 0, 0); sink++; }
NOINLINE void exit_inner(void) { work(30000); CHECK_X87(2222); exit_now(); sink++; }
NOINLINE void exit_outer(void) { exit_inner(); sink++; }

int main(void)
{
    KEEP_IN_X87(2222);
    exit_outer();
    return 0;
}
