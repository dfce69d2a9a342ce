// A walk that is interrupted at each of its instructions, by a handler that takes another one. Both have to be
// right: before unwind_local_prepare, with rows that are looked up, and with kept ones. And complete; but
// on i386 the C library's memcpy has wrong call frame information, which of them a processor runs: where it copies in
// a loop and then jumps by a table, its instructions do not tell either where it returns. There all other code has to
// be complete.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unwind_local.h>

#ifdef __x86_64__
#define PC REG_RIP
#else
#define PC REG_EIP
#endif

enum { MOST = 128, TRAP_FLAG = 0x100 };

static volatile bool is_stepping;
static void *known[MOST], *first_wrong;
static size_t known_count;
static long steps, wrong, cut, cut_elsewhere;
// Of the C library.
static uintptr_t library_start, library_end;

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (!is_stepping) {
        registers[REG_EFL] &= ~TRAP_FLAG;
        return;
    }
    registers[REG_EFL] |= TRAP_FLAG;
    void *list[MOST];
    unwind_local_end end;
    size_t count = unwind_local_backtrace_of(context, list, MOST, &end);
    steps++;
    if (!end.complete) {
        uintptr_t pc = (uintptr_t)registers[PC];
        cut++;
        if (pc < library_start || pc >= library_end) cut_elsewhere++;
    }
    bool is_right = count >= known_count &&
                    memcmp(list + count - known_count, known, known_count * sizeof *known) == 0;
    if (end.complete && !is_right && wrong++ == 0) first_wrong = (void *)(uintptr_t)registers[PC];
}

__attribute__((noinline)) static void walk(const char *what) {
    void *alone[MOST], *stepped[MOST];
    unwind_local_end end, end_stepped;
    size_t count = unwind_local_backtrace(alone, MOST, &end);
    // Without this function's own frame, which returns to another place each time.
    known_count = count - 1;
    memcpy(known, alone + 1, known_count * sizeof *known);
    steps = cut = cut_elsewhere = 0;
    is_stepping = true;
    __asm__ volatile("int3");
    size_t count_stepped = unwind_local_backtrace(stepped, MOST, &end_stepped);
    is_stepping = false;
    __asm__ volatile("int3");
    bool is_same = count == count_stepped && end.complete && end_stepped.complete &&
                   memcmp(alone + 1, stepped + 1, known_count * sizeof *known) == 0;
#ifdef __x86_64__
    bool is_whole = cut == 0;
#else
    bool is_whole = cut_elsewhere == 0 && cut * 50 < steps;
#endif
    printf("%s %ld instructions, %ld wrong, %ld cut; ", what, steps, wrong, cut);
    if (wrong || !is_same || !is_whole || steps < 500) {
        printf("%s, first wrong at %p\n", is_same ? "the same frames" : "other frames", first_wrong);
        exit(EXIT_FAILURE);
    }
}

__attribute__((noinline)) static int descend(int depth, const char *what) {
    if (depth == 0) {
        walk(what);
        return 0;
    }
    int found = descend(depth - 1, what);
    __asm__ volatile("" ::"r"(found));
    return found + 1;
}

int main(void) {
    struct dl_find_object library;
    if (_dl_find_object((void *)fseek, &library) == 0) {
        library_start = (uintptr_t)library.dlfo_map_start;
        library_end = (uintptr_t)library.dlfo_map_end;
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, NULL);
    descend(10, "looked up:");
    unwind_local_prepare();
    descend(10, "first kept:");
    descend(10, "kept:");
    printf("\n");
    return EXIT_SUCCESS;
}
