/* The known chain of calls, compiled twice: with frame pointers and without.
 *
 * Each function notes where it will return to and where its frame begins, so
 * that the chain itself is the witness of what a walk should find. Each keeps
 * values across its call that the result depends on, so that the compiler has
 * to give it a real frame and a walk that disturbed one would be found out.
 */
#include "chain.h"

/* One name a build: CHAIN is the prefix of all functions. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(CHAIN, function)

/* Neither inlined, cloned nor analysed across calls: every call is made. */
#if defined(__clang__)
#define FUNCTION __attribute__((noinline, visibility("protected")))
#else
#define FUNCTION __attribute__((noipa, visibility("protected")))
#endif

static inline __attribute__((always_inline)) void note(struct witness *w, const void *return_address,
                                                       const void *cfa)
{
    if (w->depth < WITNESS_FRAMES) {
        w->frames[w->depth].return_address = (uint64_t)return_address;
        w->frames[w->depth].cfa = (uint64_t)cfa;
    }
    w->depth++;
}
#define NOTE(w) note(w, __builtin_return_address(0), __builtin_dwarf_cfa())

/* Waits in the kernel without a function of libc: returns when `w->fd` is at
 * its end, or at once if it is no open file. */
FUNCTION uint64_t NAME(park)(struct witness *w, uint64_t x)
{
    char byte;
    long got;

    NOTE(w);
    __atomic_store_n(&w->parked, 1, __ATOMIC_RELEASE);
    do {
        __asm__ volatile("syscall"
                         : "=a"(got)
                         : "0"(0L /* read */), "D"((long)w->fd), "S"(&byte), "d"(1L)
                         : "rcx", "r11", "memory");
    } while (got > 0 || got == -4 /* EINTR */);
    return x * 0x9e3779b97f4a7c15;
}

/* The smallest frame: nothing but the alignment of the stack. */
FUNCTION uint64_t NAME(small)(struct witness *w, uint64_t x)
{
    NOTE(w);
    return NAME(park)(w, x) + 1;
}

/* Calls a function that only its caller knows. */
FUNCTION uint64_t NAME(through)(struct witness *w, uint64_t x,
                                uint64_t (*next)(struct witness *, uint64_t))
{
    NOTE(w);
    return next(w, x + 3) ^ x;
}

/* Recursion: one function in several frames. */
FUNCTION uint64_t NAME(descend)(struct witness *w, uint64_t x, unsigned levels)
{
    NOTE(w);
    uint64_t inner =
        levels ? NAME(descend)(w, x * 5 + levels, levels - 1) : NAME(through)(w, x, NAME(small));
    return inner + (x ^ levels);
}

/* A frame aligned more than the stack is. */
FUNCTION uint64_t NAME(align)(struct witness *w, uint64_t x)
{
    NOTE(w);
    _Alignas(64) volatile uint64_t line[16];
    for (unsigned i = 0; i < 16; i++)
        line[i] = x + i;
    uint64_t inner = NAME(descend)(w, x, 2);
    return inner + line[x & 15];
}

/* A frame whose size only its caller knows. */
FUNCTION uint64_t NAME(grow)(struct witness *w, uint64_t x, unsigned count)
{
    NOTE(w);
    volatile uint64_t *values = __builtin_alloca(count * sizeof *values);
    for (unsigned i = 0; i < count; i++)
        values[i] = x ^ i;
    uint64_t inner = NAME(align)(w, x + count);
    return inner + values[x % count];
}

/* A frame larger than a page. */
FUNCTION uint64_t NAME(table)(struct witness *w, uint64_t x)
{
    NOTE(w);
    volatile uint32_t cells[1500];
    for (unsigned i = 0; i < 1500; i++)
        cells[i] = (uint32_t)(x >> (i & 31));
    uint64_t inner = NAME(grow)(w, x + cells[7], 37);
    return inner + cells[x % 1500];
}

/* Arguments on the stack and every callee-saved register in use. */
FUNCTION uint64_t NAME(spread)(struct witness *w, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                               uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    NOTE(w);
    uint64_t p = a * b, q = c + d, r = e ^ f, s = g - h, t = a + h;
    uint64_t inner = NAME(table)(w, p ^ q ^ r ^ s ^ t);
    return inner + p * 3 + q * 5 + r * 7 + s * 11 + t * 13 + b + g;
}

FUNCTION uint64_t NAME(enter)(struct witness *w, uint64_t x)
{
    NOTE(w);
    uint64_t inner = NAME(spread)(w, x, x + 2, x + 3, x + 5, x + 7, x + 11, x + 13, x + 17);
    return inner - x;
}

/* uint64_t CHAIN_start(struct witness *, uint64_t)
 *
 * What start-up code does: a zero return address and a zero frame pointer
 * below the first function, so that a stack has an end. The call frame
 * information says so too while the function runs. Above them is room
 * without return addresses, as above the first function of a program: a walk
 * does not take a zero beside a return address for an end. */
#define TEXT_(s) #s
#define TEXT(s) TEXT_(s)
#define START TEXT(NAME(start))
__asm__(".text\n"
        ".p2align 4\n"
        ".globl " START "\n"
        ".protected " START "\n"
        ".type " START ", @function\n" START ":\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "subq $528, %rsp\n"
        ".cfi_def_cfa_offset 544\n"
        "movq %rdi, %rdx\n"
        "movq %rsp, %rdi\n"
        "movl $66, %ecx\n"
        "xorl %eax, %eax\n"
        "rep stosq\n"
        "movq %rdx, %rdi\n"
        ".cfi_remember_state\n"
        ".cfi_def_cfa_offset 16\n"
        "movq %rsp, %rbp\n"
        "call " TEXT(NAME(enter)) "\n"
        ".cfi_restore_state\n"
        "addq $528, %rsp\n"
        ".cfi_def_cfa_offset 16\n"
        "popq %rbp\n"
        ".cfi_def_cfa_offset 8\n"
        ".cfi_restore %rbp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size " START ", . - " START "\n");
