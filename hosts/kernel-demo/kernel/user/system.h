/* System calls and the start of a program. */

#define NOINLINE __attribute__((noinline, noclone))

enum {
    SIGACTION = 13,
    YIELD = 24,
    FORK = 57,
    EXEC = 59,
    EXIT = 60,
    WAIT = 61,
    RAISE = 62,
    SPIN = 1000,
    X87_IS_LOST = 1003,
};

/* The programs by number, as in task/program.rs. */
enum { EXECUTES = 5, EXECUTED = 8 };

/* Values that stay on the stack: gcc gives a function that has none no frame
 * pointer, whatever it is told. */
#ifdef __x86_64__
static inline long call(long number, long first, long second)
{
    volatile long result;
    long value;
    __asm__ volatile("syscall"
                     : "=a"(value)
                     : "a"(number), "D"(first), "S"(second)
                     : "rcx", "r11", "memory");
    result = value;
    return result;
}
#else
static inline long call(long number, long first, long second)
{
    volatile long result;
    long value;
    __asm__ volatile("int $0x80"
                     : "=a"(value)
                     : "a"(number), "b"(first), "c"(second)
                     : "memory");
    result = value;
    return result;
}
#endif

/* Keeps calls from being tail calls, and loops from being nothing. */
static volatile long sink;

static inline void work(long rounds)
{
    volatile long sum = 0;
    for (long round = 0; round < rounds; round++)
        sum += round;
    sink += sum;
}

#ifdef __x86_64__
/* The CPUs of the machine, as far as CPUID tells. */
static inline unsigned cpus(void)
{
    unsigned leaf = 1, info, c, d;
    __asm__ volatile("cpuid" : "+a"(leaf), "=b"(info), "=c"(c), "=d"(d));
    return d & 1u << 28 ? info >> 16 & 0xff : 1;
}

/* Keeps a value in an x87 register over the work of a program, to see that no other task
 * changes it. gcc uses none of them here. On one CPU alone: see `restore_registers` in
 * entry.s. */
#define KEEP_IN_X87(value)                                                                 \
    do {                                                                                   \
        if (cpus() == 1)                                                                   \
            __asm__ volatile("fildl %0" : : "m"((int){ value }));                          \
    } while (0)
#define CHECK_X87(value)                                                                   \
    do {                                                                                   \
        int kept = value;                                                                  \
        if (cpus() == 1)                                                                   \
            __asm__ volatile("fistl %0" : "=m"(kept));                                     \
        if (kept != (value))                                                               \
            call(X87_IS_LOST, 0, 0);                                                       \
    } while (0)
#endif

NOINLINE int main(void);

/* The kernel starts a program as if it had called this from address zero. */
void _start(void)
{
    main();
    call(EXIT, 0, 0);
    for (;;)
        ;
}
