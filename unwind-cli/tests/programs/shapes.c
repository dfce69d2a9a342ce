/* Calls of many shapes for code that keeps a frame pointer, of 32 or 64 bits:
 * arguments on the stack, recursion of several kinds, large, growing and
 * realigned frames, calls by pointer, structures returned in memory, and leaves
 * without a frame. */
#include <stdarg.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile int sink;

/* The only functions without a frame: the frame pointer leads past their caller. */
int frameless_add(int a, int b);
int frameless_push(int a);
#ifdef __x86_64__
#define ADD "leal (%rdi,%rsi), %eax\n"
#define PUSH "pushq %rbx\n.cfi_def_cfa_offset 16\nmovl %edi, %ebx\nleal (%rbx,%rbx,2), %eax\npopq %rbx\n"
#define POPPED ".cfi_def_cfa_offset 8\n"
#else
#define ADD "movl 4(%esp), %eax\naddl 8(%esp), %eax\n"
#define PUSH \
    "pushl %ebx\n.cfi_def_cfa_offset 8\nmovl 8(%esp), %ebx\nleal (%ebx,%ebx,2), %eax\npopl %ebx\n"
#define POPPED ".cfi_def_cfa_offset 4\n"
#endif
__asm__(".text\n"
        ".type frameless_add, @function\n"
        "frameless_add:\n"
        ".cfi_startproc\n" ADD "nop\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size frameless_add, . - frameless_add\n"
        ".type frameless_push, @function\n"
        "frameless_push:\n"
        ".cfi_startproc\n" PUSH POPPED "ret\n"
        ".cfi_endproc\n"
        ".size frameless_push, . - frameless_push\n");

struct triple {
    int a, b, c;
};

NOINLINE unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

NOINLINE int sum(int count, ...)
{
    va_list list;
    int total = 0;
    va_start(list, count);
    while (count-- > 0)
        total = frameless_add(total, va_arg(list, int));
    va_end(list);
    return total;
}

NOINLINE struct triple make(int x)
{
    struct triple t = {x, frameless_push(x), x ^ 5};
    sink += t.b;
    return t;
}

NOINLINE int large(int x)
{
    volatile char bytes[5000];
    for (int i = 0; i < 20; i++)
        bytes[(unsigned)(x * i) % sizeof bytes] = (char)i;
    return sum(3, bytes[0], x, 7) + bytes[(unsigned)x % sizeof bytes];
}

NOINLINE int growing(int x)
{
    volatile int *values = __builtin_alloca((unsigned)x * sizeof(int));
    for (int i = 0; i < x; i++)
        values[i] = i * x;
    return large(values[x / 2]) + values[x - 1];
}

NOINLINE int aligned(int x)
{
    _Alignas(64) volatile int line[16];
    line[x & 15] = growing(x);
    return line[x & 15];
}

NOINLINE int apply(int (*function)(int), int x) { return function(x) + 1; }

NOINLINE long long wide(long long a, int b) { return a * b + apply(aligned, b); }

int is_odd(int n);
NOINLINE int is_even(int n) { return n == 0 ? 1 : is_odd(n - 1) + 0 * ++sink; }
NOINLINE int is_odd(int n) { return n == 0 ? 0 : is_even(n - 1) + 0 * ++sink; }

int main(void)
{
    struct triple t = make(3);
    return (int)(fib(9) + (unsigned)t.c + (unsigned)wide(t.a, 12) + (unsigned)is_even(12)) & 0x7f;
}
