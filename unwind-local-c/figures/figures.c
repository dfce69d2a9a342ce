// The time of a walk beside libunwind's and glibc's, and how much stack it takes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unwind_local.h>

typedef int walker(void **, int);

static int ours(void **list, int size) {
    return (int)unwind_local_backtrace(list, (size_t)size, NULL);
}

static walker *libunwind;
static void *list[1024];

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

// The shortest of rounds, in nanoseconds.
static double time_of(walker *walk, int rounds, int size) {
    double best = 1e18;
    for (int round = 0; round < 30; round++) {
        double start = now();
        for (int at = 0; at < rounds; at++) walk(list, size);
        double each = (now() - start) / rounds;
        if (each < best) best = each;
    }
    return best;
}

static void measure(const char *what) {
    int frames = ours(list, 1024);
    double a = time_of(ours, 2000, 1024);
    double b = libunwind ? time_of(libunwind, 2000, 1024) : 0;
    double c = time_of(backtrace, 50, 1024);
    printf("%-34s %6d %9.0f %9.0f %9.0f   %.2f %.3f\n", what, frames, a, b, c, b ? a / b : 0, a / c);
}

static const char *volatile label;
__attribute__((noinline)) static int recurse(int depth) {
    if (depth == 0) {
        measure(label);
        return 0;
    }
    int found = recurse(depth - 1);
    __asm__ volatile("" ::"r"(found));
    return found + 1;
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    measure(label);
}

static void once(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    void *few[64];
    unwind_local_backtrace_of(context, few, 64, NULL);
}

static void nothing(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    // What the caller has the addresses written to is its own. The lowest word shows it.
    void *few[64];
    *(void *volatile *)few = NULL;
}

static void handle(void (*function)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {0};
    action.sa_sigaction = function;
    action.sa_flags = SA_SIGINFO | flags;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
}

static char *room;
enum { ROOM = 64 << 10 };

// How many bytes of the signal stack were written to.
static size_t used(void (*function)(int, siginfo_t *, void *)) {
    memset(room, 0x5a, ROOM);
    handle(function, SA_ONSTACK);
    size_t at = 0;
    while (at < ROOM && room[at] == 0x5a) at++;
    return ROOM - at;
}

// With an argument the stack alone, which is the same each time.
int main(int count, char **arguments) {
    (void)arguments;
    void *library = dlopen("libunwind.so.8", RTLD_NOW);
    if (library) libunwind = (walker *)(uintptr_t)dlsym(library, "unw_backtrace");
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = room, .ss_size = ROOM};
    sigaltstack(&stack, NULL);
    // From one place, so that the addresses are the same each time.
    size_t bytes[6];
    for (int at = 0; at < 6; at++) {
        if (at == 4) unwind_local_prepare();
        bytes[at] = used(at < 2 ? nothing : once);
    }
    printf("stack bytes, less the kernel's frame and an empty handler's: %zd in the first walk, %zd in "
           "one without kept rows, %zd warm\n",
           bytes[2] - bytes[1], bytes[3] - bytes[1], bytes[5] - bytes[1]);
    if (count > 1) return 0;
    printf("%-34s %6s %9s %9s %9s   %s\n", "ns a walk", "frames", "ours", "libunwind", "glibc",
           "ours / theirs");
    measure("main");
    static const struct { int depth; const char *name; } cases[] = {
        {12, "recursion 12"}, {42, "recursion 42"}, {302, "recursion 302"}};
    for (size_t at = 0; at < 3; at++) {
        label = cases[at].name;
        recurse(cases[at].depth);
    }
    label = "in a handler";
    handle(handler, 0);
    label = "in a handler on its own stack";
    handle(handler, SA_ONSTACK);
    return 0;
}
