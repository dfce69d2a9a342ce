// Stacks whose frames the program knows, by the return addresses that its functions have: here, in
// a handler, on a signal stack, in threads and on a stack that the program gives a thread.
//
//   chain          after unwind_local_prepare
//   chain before   without it: what is told is right, and is not called complete without reason
//
// The outermost frames are the C library's. UNWIND_WHOLE=1 asks for these, too: it has to have call
// frame information.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind_local.h>

enum { MOST = 128, DEPTH = 20, AFTER_GAP = 1 << 6 };

// So much that a thread on a stack of the program's has its variables elsewhere with musl.
static _Thread_local volatile char variables[8192];

static bool is_prepared = true, is_whole;
static int checks, faults;

typedef struct {
    uintptr_t address[MOST];
    size_t count;
} chain;

static _Thread_local const chain *interrupted;

// Whether the frames from `first` on are those of the chain, and what follows is as it says.
static void check(const char *what, const unwind_local_frame *frame, size_t count, size_t first,
                  unwind_local_end end, const chain *known) {
    size_t same = 0;
    bool has_gap = false;
    while (same < known->count && first + same < count && frame[first + same].address == known->address[same])
        same++;
    for (size_t at = 0; at < first + same && at < count; at++) has_gap |= frame[at].provenance & AFTER_GAP;
    bool is_right = is_prepared ? same == known->count && !has_gap : same == known->count || !end.complete;
    if (is_whole) is_right = is_right && end.complete;
    checks++;
    if (is_right) return;
    faults++;
    printf("%s: %zu of %zu frames, then %s%s:", what, same, known->count, unwind_local_end_text(end.code),
           end.complete ? ", complete" : "");
    for (size_t at = 0; at < count; at++) printf(" %zx/%x", frame[at].address, frame[at].provenance);
    printf("\nknown:");
    for (size_t at = 0; at < known->count; at++) printf(" %zx", known->address[at]);
    printf("\n");
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    unwind_local_frame frame[MOST];
    unwind_local_end end;
    size_t count = unwind_local_frames(context, frame, MOST, &end);
    check("what a signal interrupted", frame, count, 1, end, interrupted);
    void *address[MOST];
    size_t less = unwind_local_backtrace_of(context, address, MOST, &end);
    bool is_same = less == count;
    for (size_t at = 0; at < less && is_same; at++) is_same = (uintptr_t)address[at] == frame[at].address;
    if (!is_same) faults++, printf("frames and addresses differ\n");
    // From here: the handler, the trampoline, the interrupted function, its callers.
    count = unwind_local_frames(NULL, frame, MOST, &end);
    check("a handler", frame, count, 3, end, interrupted);
}

// Its return addresses are the chain; the frame that asks is before them.
__attribute__((noinline)) static void bottom(const chain *callers) {
    chain known = *callers;
    known.address[known.count++] = (uintptr_t)__builtin_return_address(0);
    // Innermost first.
    for (size_t low = 0, high = known.count - 1; low < high; low++, high--) {
        uintptr_t other = known.address[low];
        known.address[low] = known.address[high];
        known.address[high] = other;
    }
    unwind_local_frame frame[MOST];
    unwind_local_end end;
    size_t count = unwind_local_frames(NULL, frame, MOST, &end);
    check("here", frame, count, 1, end, &known);
    interrupted = &known;
    __asm__ volatile("int3");
    interrupted = NULL;
}

__attribute__((noinline)) static void descend(int depth, chain *callers) {
    volatile char room[700];
    room[0] = (char)depth;
    callers->address[callers->count++] = (uintptr_t)__builtin_return_address(0);
    if (depth == 0) bottom(callers);
    else descend(depth - 1, callers);
    callers->count -= room[0] == depth;
}

static void walks(void) {
    chain callers = {.count = 0};
    descend(DEPTH, &callers);
    // And with the handler on a stack of its own.
    static _Thread_local char room[32768];
    stack_t other = {.ss_sp = room, .ss_size = sizeof room}, none = {.ss_flags = SS_DISABLE};
    if (sigaltstack(&other, NULL) != 0) abort();
    callers.count = 0;
    descend(DEPTH, &callers);
    sigaltstack(&none, NULL);
}

static void *thread(void *argument) {
    variables[0] = 1;
    walks();
    __asm__ volatile("");
    return argument;
}

static void run(pthread_attr_t *attributes) {
    pthread_t other;
    if (pthread_create(&other, attributes, thread, NULL) != 0 || pthread_join(other, NULL) != 0) abort();
}

int main(int argc, char **argv) {
    is_prepared = argc < 2 || strcmp(argv[1], "before") != 0;
    is_whole = is_prepared && getenv("UNWIND_WHOLE");
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGTRAP, &action, NULL);
    if (is_prepared) unwind_local_prepare();
    walks();
    run(NULL);
    static char given[1 << 18] __attribute__((aligned(4096)));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, given, sizeof given);
    run(&attributes);
    printf("%d stacks, %d wrong; rows %s\n", checks, faults, unwind_local_keeps_rows() ? "are kept" : "are not kept");
    return faults == 0 && checks == 18 && unwind_local_keeps_rows() == is_prepared ? EXIT_SUCCESS : EXIT_FAILURE;
}
