// The time of a walk beside libunwind's and glibc's, and how much stack it takes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
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

static void print(const char *what, int frames, double a, double b, double c) {
    printf("%-34s %6d %9.0f %9.0f %9.0f   %.3f %.3f\n", what, frames, a, b, c, b != 0 ? a / b : 0, c != 0 ? a / c : 0);
}

static void measure(const char *what) {
    int frames = ours(list, 1024);
    double a = time_of(ours, 2000, 1024);
    double b = libunwind ? time_of(libunwind, 2000, 1024) : 0;
    double c = time_of(backtrace, 50, 1024);
    print(what, frames, a, b, c);
}

// The first walk of a thread, with nothing kept: in nanoseconds, the shortest of many threads. Kept rows are
// forgotten when the program tells of code.
static void *some_code;
static void (*flush_cache)(void *, uint64_t, uint64_t);
static void **address_space;
enum { FIRST_DEPTH = 42, THREADS = 100 };
static int first_frames;
static double first_time;

__attribute__((noinline)) static int first_at(int depth, walker *walk) {
    if (depth == 0) {
        void *own_list[1024];
        if (walk == ours)
            unwind_local_forget_code(unwind_local_tell_code(some_code, 4096, UNWIND_LOCAL_FRAME_POINTERS, NULL, 0));
        else if (flush_cache && address_space)
            flush_cache(*address_space, 0, 0);
        double start = now();
        first_frames = walk(own_list, 1024);
        double each = now() - start;
        if (each < first_time) first_time = each;
        return 0;
    }
    int found = first_at(depth - 1, walk);
    __asm__ volatile("" ::"r"(found));
    return found + 1;
}

static void *first_walk(void *walk) {
    walker *function;
    memcpy(&function, &walk, sizeof function);
    first_at(FIRST_DEPTH, function);
    return NULL;
}

static double time_of_first(walker *walk) {
    if (!walk) return 0;
    void *argument;
    memcpy(&argument, &walk, sizeof argument);
    first_time = 1e18;
    for (int at = 0; at < THREADS; at++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, first_walk, argument) != 0) return 0;
        pthread_join(thread, NULL);
    }
    return first_time;
}

static void measure_first(const char *what) {
    double a = time_of_first(ours), b = time_of_first(libunwind), c = time_of_first(backtrace);
    print(what, first_frames, a, b, c);
}

// A thousand functions that call the walker.
__asm__(".text\n"
        "callers:\n"
        ".rept 1000\n"
        ".balign 32\n"
        ".cfi_startproc\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call *%rdx\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".endr\n");
extern char callers[];
enum { CALLERS = 1000, CALLER = 32 };
static walker *called;
static int by_callers(void **list, int size) {
    for (size_t at = 0; at < CALLERS; at++) {
        int (*caller)(void **, int, walker *);
        void *code = callers + at * CALLER;
        memcpy(&caller, &code, sizeof caller);
        caller(list, size, called);
    }
    return 0;
}

static double time_by_callers(walker *walk) {
    if (!walk) return 0;
    called = walk;
    return time_of(by_callers, walk == backtrace ? 1 : 5, 1024) / CALLERS;
}

static void measure_callers(const char *what) {
    print(what, ours(list, 1024) + 1, time_by_callers(ours), time_by_callers(libunwind), time_by_callers(backtrace));
}

// libunwind's functions for a frame at a time, in either library.
typedef struct {
    int (*get_context)(void *);
    int (*init_local)(void *, void *);
    int (*step)(void *);
    int (*get_reg)(void *, int, uint64_t *);
} cursor_functions;
static cursor_functions own, others, *chosen;

static bool find_cursor(cursor_functions *functions, void *library) {
    const char *names[] = {"_Ux86_64_getcontext", "_ULx86_64_init_local", "_ULx86_64_step", "_ULx86_64_get_reg"};
    void *found[4];
    for (size_t at = 0; at < 4; at++)
        if (!library || !(found[at] = dlsym(library, names[at]))) return false;
    memcpy(functions, found, sizeof found);
    return true;
}

static bool with_sp;
static int by_cursor(void **list, int size) {
    _Alignas(16) static char context[1024], cursor[1024];
    chosen->get_context(context);
    chosen->init_local(cursor, context);
    int count = 0;
    do {
        uint64_t pc = 0, sp = 0;
        chosen->get_reg(cursor, 16, &pc);
        if (with_sp) chosen->get_reg(cursor, 7, &sp);
        list[count++] = (void *)pc;
    } while (count < size && chosen->step(cursor) > 0);
    return count;
}

static double time_by_cursor(cursor_functions *functions) {
    if (!functions->step) return 0;
    chosen = functions;
    return time_of(by_cursor, 100, 1024);
}

static void measure_cursor(const char *what) {
    double a = time_by_cursor(&own), b = time_by_cursor(&others);
    chosen = &own;
    print(what, own.step ? by_cursor(list, 1024) : 0, a, b, 0);
}

static void measure_cursor_with_sp(const char *what) {
    with_sp = true;
    measure_cursor(what);
    with_sp = false;
}

// The same while another thread walks, too.
static volatile bool is_over;
static void *walks(void *walk) {
    walker *function;
    memcpy(&function, &walk, sizeof function);
    void *own_list[1024];
    while (!is_over) function(own_list, 1024);
    return NULL;
}

static double time_beside(walker *walk) {
    if (!walk) return 0;
    pthread_t other;
    void *argument;
    memcpy(&argument, &walk, sizeof argument);
    is_over = false;
    if (pthread_create(&other, NULL, walks, argument) != 0) return 0;
    double found = time_of(walk, walk == backtrace ? 50 : 2000, 1024);
    is_over = true;
    pthread_join(other, NULL);
    return found;
}

static void measure_beside(const char *what) {
    print(what, ours(list, 1024), time_beside(ours), time_beside(libunwind), time_beside(backtrace));
}

static const char *volatile label;
__attribute__((noinline)) static int recurse(int depth, void (*measured)(const char *)) {
    if (depth == 0) {
        measured(label);
        return 0;
    }
    int found = recurse(depth - 1, measured);
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
        recurse(cases[at].depth, measure);
    }
    label = "in a handler";
    handle(handler, 0);
    label = "in a handler on its own stack";
    handle(handler, SA_ONSTACK);
    some_code = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (library) {
        flush_cache = (void (*)(void *, uint64_t, uint64_t))(uintptr_t)dlsym(library, "_Ux86_64_flush_cache");
        address_space = dlsym(library, "_ULx86_64_local_addr_space");
    }
    static const struct { void (*measured)(const char *); const char *name; } kinds[] = {
        {measure_first, "the first of a thread, nothing kept"},
        {measure_callers, "by 1,000 callers in turn"},
        {measure_cursor, "by libunwind's cursor"},
        {measure_cursor_with_sp, "the same, with stack pointers"},
        {measure_beside, "while another thread walks"},
    };
    find_cursor(&others, library);
    const char *name = getenv("FIGURES_LIBUNWIND");
    find_cursor(&own, name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL);
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        label = kinds[at].name;
        recurse(42, kinds[at].measured);
    }
    return 0;
}
