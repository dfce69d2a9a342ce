// Programs of some kinds that people have. They ask for the time seldom: the 32-bit vDSO has no call frame
// information for that.
// kinds signals HUNDREDTHS: computes for as long, half of the time in a signal handler.
// kinds told HUNDREDTHS: the same, with SA_SIGINFO.
// kinds clock HUNDREDTHS: asks for the time again and again, which is done in the vDSO.
// kinds processes COUNT: as many processes that live some milliseconds, one after the other.
// kinds loads COUNT LIBRARY: maps a library (of this same source), calls it and unmaps it, as often.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile long sum;

NOINLINE static void computes(long rounds) {
    while (rounds--) sum += rounds;
    sum++;
}

NOINLINE static void asks(long rounds) {
    struct timespec now;
    while (rounds--) clock_gettime(CLOCK_MONOTONIC, &now);
    sum += now.tv_nsec;
}

NOINLINE void works(void) {
    computes(300000);
    sum++;
}

NOINLINE static void handles(int number) {
    computes(1000000);
    sum += number;
}

static void is_told(int number, siginfo_t *info, void *context) {
    handles(number + !info + !context);
    sum++;
}

NOINLINE static void lasts(long hundredths, void (*does)(long), long rounds) {
    struct tms used;
    do {
        does(rounds);
        times(&used);
    } while (used.tms_utime + used.tms_stime < hundredths);
    sum++;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = atol(argv[2]);
    if (!strcmp(argv[1], "signals") || !strcmp(argv[1], "told")) {
        struct sigaction action = {.sa_handler = handles};
        if (!strcmp(argv[1], "told")) {
            action.sa_sigaction = is_told;
            action.sa_flags = SA_SIGINFO;
        }
        sigaction(SIGALRM, &action, NULL);
        struct itimerval each = {{0, 5000}, {0, 5000}};
        setitimer(ITIMER_REAL, &each, NULL);
        lasts(count, computes, 1000000);
    } else if (!strcmp(argv[1], "clock")) {
        lasts(count, asks, 100000);
    } else if (!strcmp(argv[1], "processes")) {
        for (; count > 0; count--) {
            if (fork() == 0) {
                computes(3000000);
                _exit(0);
            }
            wait(NULL);
        }
    } else if (!strcmp(argv[1], "loads") && argc > 3) {
        for (; count > 0; count--) {
            void *library = dlopen(argv[3], RTLD_NOW);
            void (*called)(void) = library ? (void (*)(void))dlsym(library, "works") : NULL;
            if (!called) return 1;
            called();
            dlclose(library);
        }
    }
    return 0;
}
