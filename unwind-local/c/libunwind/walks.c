/* Walks by libunwind's interface: prints what a library of that name finds, so that two can
   be compared. Addresses are printed by what they belong to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct { uint64_t words[127]; } unw_cursor_t;
typedef struct {
    uint64_t start_ip, end_ip, lsda, handler, gp, flags;
    int format, unwind_info_size;
    void *unwind_info;
    uint64_t extra;
} unw_proc_info_t;

#define L(name) _ULx86_64_##name
extern int L(init_local)(unw_cursor_t *, ucontext_t *);
extern int L(init_local2)(unw_cursor_t *, ucontext_t *, int);
extern int L(step)(unw_cursor_t *);
extern int L(get_reg)(unw_cursor_t *, int, uint64_t *);
extern int L(is_signal_frame)(unw_cursor_t *);
extern int L(get_proc_info)(unw_cursor_t *, unw_proc_info_t *);
extern int L(get_proc_name)(unw_cursor_t *, char *, size_t, uint64_t *);
extern int L(set_caching_policy)(void *, int);
extern void *L(local_addr_space);
extern int _Ux86_64_getcontext(ucontext_t *);
extern int unw_backtrace(void **, int);

enum { RBX = 3, RBP = 6, RSP = 7, R12 = 12, R15 = 15, RIP = 16 };

static char *anchor; /* on the stack that is walked */

void print_value(uint64_t value) {
    int64_t offset = (int64_t)(value - (uint64_t)anchor);
    if (value == 0x333 || value == 0x1212 || value == 0x1515) {
        printf(" %lx", (long)value);
    } else if (offset > -(1 << 20) && offset < 1 << 20) {
        printf(" sp%+ld", (long)offset);
    } else {
        printf(" -");
    }
}

void print_walk(const char *title, unw_cursor_t cursor, int calls) {
    int number = 0, result;
    printf("%s\n", title);
    do {
        uint64_t ip = 0, sp = 0, offset = 0;
        char name[64] = "";
        unw_proc_info_t info = {0};
        Dl_info object;
        if (L(get_reg)(&cursor, RIP, &ip) != 0 || L(get_reg)(&cursor, RSP, &sp) != 0) abort();
        if (!dladdr((void *)(ip - 1), &object)) abort();
        int is_own = strstr(object.dli_fname, "walks") != NULL;
        printf("%3d %s+%lx", number++, strrchr(object.dli_fname, '/') + 1,
            (long)(ip - (uint64_t)object.dli_fbase));
        /* Of other objects the two know different symbols. */
        if (is_own && L(get_proc_name)(&cursor, name, sizeof name, &offset) == 0)
            printf(" %s+%lx", name, (long)offset);
        if (L(get_proc_info)(&cursor, &info) == 0)
            printf(" [%lx]", (long)(info.end_ip - info.start_ip));
        if (info.handler) {
            Dl_info function;
            if (!dladdr((void *)info.handler, &function)) abort();
            printf(" handled by %s, by %lx", function.dli_sname ? function.dli_sname : "?",
                info.lsda ? (long)(info.lsda - (uint64_t)object.dli_fbase) : 0);
        }
        /* What the C library's start has in registers is its own affair. */
        for (int reg = RBX; is_own && calls && reg <= R15; reg = reg == RBX ? RBP : reg == RBP ? R12 : reg + 1) {
            uint64_t value;
            if (L(get_reg)(&cursor, reg, &value) == 0) print_value(value);
        }
        printf(" cfa");
        print_value(sp);
        printf("%s\n", L(is_signal_frame)(&cursor) > 0 ? " signal" : "");
    } while ((result = L(step)(&cursor)) > 0);
    printf("end %d\n", result);
}

/* Registers of some frames alone: those of others need not be known then. */
void print_some(const char *title, unw_cursor_t *cursor, int every) {
    int number = 0, result;
    printf("%s, registers of one frame in %d\n", title, every);
    do {
        uint64_t ip = 0, value;
        unw_proc_info_t info = {0};
        unw_cursor_t copy;
        Dl_info object;
        if (L(get_reg)(cursor, RIP, &ip) != 0 || !dladdr((void *)(ip - 1), &object)) abort();
        printf("%3d %s+%lx", number, strrchr(object.dli_fname, '/') + 1, (long)(ip - (uint64_t)object.dli_fbase));
        if (L(get_proc_info)(cursor, &info) == 0) printf(" [%lx]", (long)(info.end_ip - info.start_ip));
        memcpy(&copy, cursor, sizeof copy);
        for (int reg = RBX; number % every == every - 1 && strstr(object.dli_fname, "walks") && reg <= RSP; reg++) {
            if (reg != RBX && reg != RBP && reg != RSP) continue;
            if (L(get_reg)(&copy, reg, &value) == 0) print_value(value);
        }
        /* The copy continues by itself. */
        if (number % every == every - 1 && L(step)(&copy) > 0) {
            if (L(get_reg)(&copy, RSP, &value) != 0) abort();
            printf(" caller's cfa");
            print_value(value);
        }
        number++;
        printf("%s\n", L(is_signal_frame)(cursor) > 0 ? " signal" : "");
    } while ((result = L(step)(cursor)) > 0);
    printf("end %d\n", result);
}

__attribute__((noinline)) void walk(const char *title) {
    ucontext_t context;
    unw_cursor_t cursor;
    memset(&context, 0, sizeof context);
    _Ux86_64_getcontext(&context);
    L(init_local)(&cursor, &context);
    print_walk(title, cursor, 1);
    for (int every = 3; every < 50; every += 7) {
        L(init_local)(&cursor, &context);
        print_some(title, &cursor, every);
    }
    void *addresses[64];
    int count = unw_backtrace(addresses, 64);
    printf("backtrace %d\n", count);
    /* The first one is in this function, elsewhere. */
    for (int at = 1; at < count; at++) {
        Dl_info object;
        if (!dladdr(addresses[at], &object)) abort();
        printf("  %s+%lx\n", strrchr(object.dli_fname, '/') + 1,
            (long)((char *)addresses[at] - (char *)object.dli_fbase));
    }
}

/* Functions that have known values in registers that calls preserve. */
#define WITH(name, reg, value, call)                                                     \
    __attribute__((noinline)) void name(const char *title) {                             \
        register long kept __asm__(reg) = value;                                         \
        __asm__ volatile("" : "+r"(kept));                                               \
        call(title);                                                                     \
        __asm__ volatile("" : : "r"(kept));                                              \
    }
WITH(third, "r15", 0x1515, walk)
WITH(second, "r12", 0x1212, third)
WITH(first, "rbx", 0x333, second)

int order(const void *a, const void *b) {
    static int calls;
    if (calls++ == 0) first("in a callback of the C library");
    return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) void recurse(int depth) {
    volatile char room[100];
    room[0] = (char)depth;
    if (depth == 0) first("recursion");
    else recurse(depth - 1);
    room[1] = room[0];
}

void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    unw_cursor_t cursor;
    walk("in a handler");
    L(init_local2)(&cursor, context, 1);
    print_walk("what the signal interrupted", cursor, 1);
}

__attribute__((noinline)) void interrupted(int number) {
    raise(number);
    __asm__ volatile("");
}

static void leave(int *value) { __asm__ volatile("" : : "r"(value) : "memory"); }

/* Has a handler, for what is cleaned up. */
__attribute__((noinline)) void cleans_up(void) {
    __attribute__((cleanup(leave))) int value = 1;
    first("with a handler");
    __asm__ volatile("" : : "r"(&value));
}

void *thread(void *unused) {
    char here;
    anchor = &here;
    recurse(5);
    return unused;
}

int main(void) {
    static char stack[1 << 16];
    char here;
    anchor = &here;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    printf("policy %d\n", L(set_caching_policy)(L(local_addr_space), 1));
    recurse(0);
    recurse(30);
    cleans_up();
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof *numbers, order);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    interrupted(SIGUSR1);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    interrupted(SIGUSR2);
    pthread_t other;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    return 0;
}
