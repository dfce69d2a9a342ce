/* Forks from deep down and waits for the child, which ends there. */
#include "system.h"

NOINLINE void fork_child(void) { work(10000); call(EXIT, 0, 0); sink++; }
NOINLINE void fork_parent(void) { work(5000); call(WAIT, 0, 0); sink++; }

NOINLINE void fork_now(void)
{
    if (call(FORK, 0, 0) == 0)
        fork_child();
    else
        fork_parent();
    sink++;
}

NOINLINE void fork_outer(void) { fork_now(); sink++; }

int main(void)
{
    for (;;)
        fork_outer();
}
