// To preload into a program: interrupts it at random times, walks what was interrupted in the handler,
// and writes what was found with all registers and the stack to the file in TRUTH_FILE, TRUTH_STOPS
// times. Then the program ends. With TRUTH_LATE it begins that many milliseconds after the program: Go
// takes all signals for itself when it starts.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <unwind_local.h>

#include "stops.h"

// The most of a stack that is kept.
enum { STACK = 1 << 18, BELOW = 128 };

static timer_t timer;
static unsigned random_state = 1;
static int file;
static long stops_left;

#ifdef __x86_64__
static const int BY_DWARF[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                               REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
#define STACK_POINTER REG_RSP
#else
static const int BY_DWARF[] = {REG_EAX, REG_ECX, REG_EDX, REG_EBX, REG_ESP, REG_EBP, REG_ESI, REG_EDI, REG_EIP};
#define STACK_POINTER REG_ESP
#endif

enum { REGISTERS = sizeof BY_DWARF / sizeof *BY_DWARF };

static void put(const void *bytes, size_t len) {
    while (len) {
        ssize_t put = write(file, bytes, len);
        if (put <= 0) _exit(3);
        bytes = (const char *)bytes + put;
        len -= (size_t)put;
    }
}

// Which files are mapped where, if that is not as it was.
static void put_maps(void) {
    static char all[1 << 19], last[1 << 19];
    static size_t last_len;
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t len = 0, kept = 0;
    for (ssize_t more; (more = read(maps, all + len, sizeof all - len)) > 0;) len += (size_t)more;
    close(maps);
    // Lines with a file's name alone: the heap grows all the time.
    for (char *line = all, *end; (end = memchr(line, '\n', len - (size_t)(line - all))); line = end + 1) {
        size_t line_len = (size_t)(end + 1 - line);
        if (!memchr(line, '/', line_len)) continue;
        memmove(all + kept, line, line_len);
        kept += line_len;
    }
    if (kept == last_len && memcmp(all, last, kept) == 0) return;
    memcpy(last, all, last_len = kept);
    truth_header header = {.kind = TRUTH_MAPS, .bytes = kept};
    put(&header, sizeof header);
    put(all, kept);
}

static void arm(void) {
    // Between 10 and 210 us.
    random_state = random_state * 1103515245 + 12345;
    struct itimerspec next = {{0, 0}, {0, 10000 + (long)(random_state >> 8) % 200000}};
    timer_settime(timer, 0, &next, NULL);
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    static void *list[TRUTH_MOST];
    static uint64_t addresses[TRUTH_MOST];
    static char stack[STACK];
    unwind_local_end end;
    size_t count = unwind_local_backtrace_of(context, list, TRUTH_MOST, &end);
    put_maps();

    greg_t *saved = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t start = (uintptr_t)saved[STACK_POINTER] - BELOW;
    struct iovec to = {stack, sizeof stack}, from = {(void *)start, sizeof stack};
    // Up to where the memory ends.
    ssize_t read = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    truth_header header = {
        .kind = TRUTH_STOP,
        .word_size = sizeof(void *),
        .registers_count = REGISTERS,
        .is_complete = end.complete,
        .addresses_count = count,
        .stack = start,
        .bytes = read > 0 ? (uint64_t)read : 0,
    };
    for (size_t at = 0; at < REGISTERS; at++) header.registers[at] = (unsigned long)saved[BY_DWARF[at]];
    for (size_t at = 0; at < count; at++) addresses[at] = (uintptr_t)list[at];
    put(&header, sizeof header);
    put(addresses, count * sizeof *addresses);
    put(stack, header.bytes);
    if (--stops_left == 0) _exit(0);
    arm();
}

static void take_the_signal(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    arm();
}

static void *later(void *milliseconds) {
    // The program's threads are to be interrupted.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    usleep((useconds_t)(uintptr_t)milliseconds * 1000);
    take_the_signal();
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    // For this program alone, not those that it starts.
    unsetenv("LD_PRELOAD");
    const char *name = getenv("TRUTH_FILE"), *stops = getenv("TRUTH_STOPS"), *seed = getenv("TRUTH_SEED");
    if (!name || !stops) return;
    if (seed) random_state = (unsigned)atoi(seed);
    stops_left = atol(stops);
    file = open(name, O_WRONLY | O_CLOEXEC);
    if (file < 0 || stops_left <= 0) _exit(3);
    unwind_local_prepare();
    put_maps();
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGPROF;
    const char *late = getenv("TRUTH_LATE");
    // The processor's time is looked at every few milliseconds only. But where threads sleep, one of
    // them would get the signals of the other clock.
    clockid_t clock = late && *late ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    if (timer_create(clock, &event, &timer) != 0) _exit(3);
    if (!late || !*late) return take_the_signal();
    pthread_t thread;
    if (pthread_create(&thread, NULL, later, (void *)(uintptr_t)atoi(late)) != 0) _exit(3);
}
