/* A stack of a known depth in the calling process, to be walked from its inner
   end. Compiled with and without frame pointers. */
#include <stdint.h>

struct ladder {
    void (*walk)(struct ladder *ladder, uint64_t pc, uint64_t sp, uint64_t fp);
    /* Zero if the four functions take turns, else where a random order starts. */
    uint64_t state;
    /* More follows, which is the caller's. */
};

typedef uint64_t rung(struct ladder *ladder, unsigned depth);
static rung first, second, third, fourth;
static rung *const rungs[4] = {first, second, third, fourth};

static unsigned next(struct ladder *ladder, unsigned depth) {
    if (!ladder->state)
        return depth & 3;
    ladder->state ^= ladder->state << 13;
    ladder->state ^= ladder->state >> 7;
    ladder->state ^= ladder->state << 17;
    return ladder->state & 3;
}

__attribute__((noinline)) static uint64_t leaf(struct ladder *ladder) {
    uint64_t pc, sp, fp;
    __asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2"
                     : "=&r"(pc), "=&r"(sp), "=&r"(fp));
    ladder->walk(ladder, pc, sp, fp);
    return sp;
}

static inline uint64_t go(struct ladder *ladder, unsigned depth) {
    return depth ? rungs[next(ladder, depth)](ladder, depth - 1) : leaf(ladder);
}

static uint64_t first(struct ladder *ladder, unsigned depth) {
    return go(ladder, depth) + 1;
}

static uint64_t second(struct ladder *ladder, unsigned depth) {
    volatile uint64_t kept[3] = {depth, 7, 11};
    return go(ladder, depth) + kept[0];
}

static uint64_t third(struct ladder *ladder, unsigned depth) {
    uint64_t before = ladder->state;
    return go(ladder, depth) ^ before ^ depth;
}

static uint64_t fourth(struct ladder *ladder, unsigned depth) {
    volatile char text[40];
    text[depth % sizeof text] = 1;
    return go(ladder, depth) + (unsigned char)text[depth % sizeof text];
}

__attribute__((used, visibility("hidden"))) uint64_t climb(struct ladder *ladder, unsigned depth) {
    return go(ladder, depth);
}

/* Calls climb with a frame pointer of zero, at which chains of them end. */
__asm__(".text\n"
        ".globl ladder_start\n"
        ".type ladder_start, @function\n"
        "ladder_start:\n"
        "\t.cfi_startproc\n"
        "\tpush %rbp\n"
        "\t.cfi_def_cfa_offset 16\n"
        "\t.cfi_offset %rbp, -16\n"
        "\txor %ebp, %ebp\n"
        "\tcall climb\n"
        "\tpop %rbp\n"
        "\t.cfi_def_cfa_offset 8\n"
        "\t.cfi_restore %rbp\n"
        "\tret\n"
        "\t.cfi_endproc\n"
        ".size ladder_start, . - ladder_start\n");
