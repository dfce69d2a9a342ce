/* Calls for the branch unit: deeper than its record, and a part to trace. */
#include "system.h"

enum { TRACE_BEGIN = 1001, TRACE_END = 1002 };

#define TRACED __attribute__((noinline, noclone, section("traced")))
extern char __start_traced[], __stop_traced[];

TRACED void traced_leaf(long rounds) { work(rounds); }

/* Ten calls and ten returns, between the two system calls. */
TRACED void traced_part(void)
{
    call(TRACE_BEGIN, (long)__start_traced, (long)__stop_traced);
    for (int i = 0; i < 10; i++)
        traced_leaf(2);
    call(TRACE_END, 20, 0);
}

NOINLINE void record_bottom(void) { work(40); }

NOINLINE void record_deep(int level)
{
    volatile int here = level;
    if (level > 1)
        record_deep(level - 1);
    else
        record_bottom();
    sink += here;
}

int main(void)
{
    for (;;) {
        traced_part();
        record_deep(40);
    }
}
