/* The first and only program of a guest: it says so and then calls functions
 * for ever. Each function is called from one place, so that the innermost one
 * tells the whole chain. */

#define NOINLINE __attribute__((noinline, noclone))

static volatile unsigned long sink;

NOINLINE void leaf(unsigned rounds)
{
    volatile unsigned long sum = 0;
    for (unsigned round = 0; round < rounds; round++)
        sum += round;
    sink += sum;
}

NOINLINE void bottom(void)
{
    volatile unsigned long rounds = 300;
    leaf(rounds);
    sink++;
}

NOINLINE void deep(unsigned left)
{
    volatile unsigned long kept = left;
    if (left)
        deep(left - 1);
    else
        bottom();
    sink += kept;
}

NOINLINE void top(void)
{
    volatile unsigned long levels = 7;
    deep(levels);
    sink++;
}

NOINLINE void brief(unsigned long value)
{
    volatile unsigned long kept = value;
    sink += kept;
}

NOINLINE int main(void)
{
    for (volatile unsigned long round = 0;; round++) {
        top();
        brief(round);
    }
}
