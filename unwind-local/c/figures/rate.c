// How much of its work a thread still does, on one CPU, while a timer interrupts it: with a handler
// that does nothing, and with one that takes a backtrace, at shorter and shorter periods.
//
//   rate [SECONDS of each measurement]     (0.5)
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <unwind_local.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static volatile bool takes_backtrace;
static volatile long handlers;
static timer_t timer;
static double last;

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void set_timer(long microseconds) {
    struct itimerspec every = {{0, microseconds * 1000}, {0, microseconds * 1000}};
    timer_settime(timer, 0, &every, NULL);
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    handlers++;
    void *list[64];
    unwind_local_end end;
    // A thread that does nothing else does not see that its time is over.
    if (handlers % 256 == 0 && seconds(CLOCK_MONOTONIC) > last) set_timer(0);
    if (takes_backtrace) (void)unwind_local_backtrace_of(context, list, 64, &end);
}

// How many rounds are done in that time.
__attribute__((noinline)) static double work(double limit) {
    double end = seconds(CLOCK_MONOTONIC) + limit;
    // More than a word of 32 bits can count.
    volatile long long done = 0;
    while (done % 1024 != 0 || seconds(CLOCK_MONOTONIC) < end) done = done + 1;
    return (double)done;
}

int main(int argc, char **argv) {
    double limit = argc > 1 ? atof(argv[1]) : 0.5;
    unwind_local_prepare();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return 1;

    double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    double alone = work(limit * 2);
    alone /= seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    printf("microseconds between signals: part of the work that is done, microseconds for a signal\n");
    for (int kind = 0; kind < 2; kind++) {
        takes_backtrace = kind;
        printf("%s", kind ? "backtrace:" : "nothing:  ");
        for (long period = 160; period >= 10; period /= 2) {
            handlers = 0;
            cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
            last = seconds(CLOCK_MONOTONIC) + limit;
            set_timer(period);
            double done = work(limit);
            set_timer(0);
            cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
            printf(" %ld: %.2f, %.1f;", period, done / cpu / alone,
                   1e6 * (cpu - done / alone) / (double)handlers);
        }
        printf("\n");
    }
    return 0;
}
