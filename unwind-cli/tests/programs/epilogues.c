/* Small functions that save registers and take them from the stack again, so that
 * a stop at random is often between two instructions of an entry or an exit. With
 * an argument it says "ready" and runs for ever, else it runs for a short while. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long sink;

NOINLINE long leaf(long a, long b) { return a * 3 + b; }

NOINLINE long one(long a, long b)
{
    long x = leaf(a, b);
    return leaf(x, b) + x;
}

NOINLINE long two(long a, long b)
{
    long x = one(a, b), y = one(b, a);
    return leaf(x, y) + x - y;
}

NOINLINE long three(long a, long b, long c)
{
    long x = two(a, b), y = one(b, c), z = leaf(c, a);
    return two(x, y) + leaf(y, z) + z - x;
}

NOINLINE long five(long a, long b, long c)
{
    long x = two(a, b), y = one(b, c), z = leaf(c, a), u = two(c, b), v = one(a, c);
    sink += x + y;
    return leaf(x, u) + leaf(y, v) + leaf(z, u) + (x ^ y ^ z ^ u ^ v);
}

/* Leaves early on one way, before it saves anything. */
NOINLINE long early(long a, long b)
{
    if (a < 10)
        return a + b;
    long x = leaf(a, b);
    return leaf(x, a) + leaf(b, x) + x;
}

NOINLINE long array(long a, long b)
{
    volatile long words[40];
    for (int i = 0; i < 40; i++)
        words[i] = a + i;
    return one(words[3], words[b & 31]) + words[7];
}

NOINLINE long growing(long a, long b)
{
    volatile char *bytes = __builtin_alloca((unsigned long)(b & 63) + 16);
    bytes[0] = (char)a;
    return two(a, b) + bytes[0];
}

NOINLINE long recursive(int depth, long a)
{
    if (depth == 0)
        return five(a, a + 1, a + 2);
    long x = recursive(depth - 1, a + depth);
    return three(x, a, depth) + early(depth, a) + x;
}

static int compare(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (leaf(x, 0) > leaf(y, 0)) - (leaf(x, 0) < leaf(y, 0));
}

/* Own code above the C library's. */
NOINLINE long sorted(long a)
{
    long values[12];
    for (int i = 0; i < 12; i++)
        values[i] = (a * (i + 7)) % 31;
    qsort(values, 12, sizeof *values, compare);
    return values[3];
}

NOINLINE long round_of(long a)
{
    return recursive(3, a) + array(a, 5) + growing(a, 9) + early(a & 15, 2) + sorted(a);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        printf("ready\n");
        fflush(stdout);
        for (long a = 0;; a++)
            sink += round_of(a);
    }
    sink += round_of(9);
    return (int)(sink & 1);
}
