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

NOINLINE int main(void);

/* The kernel starts a program as if it had called this from address zero. */
void _start(void)
{
    main();
    call(EXIT, 0, 0);
    for (;;)
        ;
}
