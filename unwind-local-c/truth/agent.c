// To preload into a program: interrupts it at random times, walks what was interrupted in the
// handler, and calls a function at which a debugger compares.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <unwind_local.h>

enum { MOST = 512 };

static timer_t timer;
static unsigned random_state = 1;

// What the debugger reads: the addresses, how many, and what the walk said.
void *truth_list[MOST];
size_t truth_count;
size_t truth_is_complete;

__attribute__((noinline)) void truth_stop(void) { __asm__ volatile(""); }

static void arm(void) {
    // Between 0.1 and 2.1 ms of the processor's time.
    random_state = random_state * 1103515245 + 12345;
    struct itimerspec next = {{0, 0}, {0, 100000 + (long)(random_state >> 8) % 2000000}};
    timer_settime(timer, 0, &next, NULL);
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    unwind_local_end end;
    truth_count = unwind_local_backtrace_of(context, truth_list, MOST, &end);
    truth_is_complete = end.complete;
    truth_stop();
    arm();
}

__attribute__((constructor)) static void begin(void) {
    // For this program alone, not those that it starts.
    unsetenv("LD_PRELOAD");
    const char *seed = getenv("TRUTH_SEED");
    if (seed) random_state = (unsigned)atoi(seed);
    unwind_local_prepare();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGPROF;
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0) arm();
}
