/* Ends from deep down, with a request pending. */
#include "system.h"

NOINLINE void exit_now(void) { call(EXIT, 0, 0); sink++; }
NOINLINE void exit_inner(void) { work(30000); exit_now(); sink++; }
NOINLINE void exit_outer(void) { exit_inner(); sink++; }

int main(void)
{
    exit_outer();
    return 0;
}
