// To preload into a program: interrupts it at random times, walks what was interrupted in the
// handler, and calls a function at which a debugger compares. With TRUTH_LATE it begins that many
// milliseconds after the program: Go takes all signals for itself when it starts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <unwind_local.h>

enum { MOST = 512 };

static timer_t timer;
static unsigned random_state = 1;

// What the debugger reads: the addresses, how many, what the walk said, and how many walks there were.
void *truth_list[MOST];
size_t truth_count;
size_t truth_is_complete;
size_t truth_number;

__attribute__((noinline)) void truth_stop(void) { __asm__ volatile(""); }

static void arm(void) {
    // Between 0.1 and 2.1 ms of the processor's time.
    random_state = random_state * 1103515245 + 12345;
    struct itimerspec next = {{0, 0}, {0, 100000 + (long)(random_state >> 8) % 2000000}};
    timer_settime(timer, 0, &next, NULL);
}

// Tells of executable memory that is no loaded object's that its functions keep frame pointers
// while they call, as V8's do: compiled code, and a copy of what is compiled beforehand. Called in the handler.
static void tell_of_compiled_code(void) {
    static struct { unsigned long start, end; uint64_t number; } told[256];
    static size_t count;
    static char maps[1 << 18];
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    for (ssize_t more; (more = read(file, maps + len, sizeof maps - 1 - len)) > 0;) len += (size_t)more;
    close(file);
    maps[len] = 0;
    unsigned long start = 0, end = 0;
    for (char *line = maps; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char *rest;
        unsigned long from = strtoul(line, &rest, 16), to = strtoul(rest + 1, &rest, 16);
        // " rwxp".
        struct dl_find_object object;
        bool is_code = rest[3] == 'x' && _dl_find_object((void *)from, &object) != 0;
        if (is_code && from == end) end = to;
        if ((is_code && from <= end && to <= end) && strchr(line, '\n')[1]) continue;
        bool is_known = start == end;
        for (size_t at = 0; at < count; at++)
            is_known = is_known || (told[at].start == start && told[at].end == end);
        if (!is_known && count < 256) {
            told[count].start = start;
            told[count].end = end;
            told[count++].number =
                unwind_local_tell_code((void *)start, end - start, UNWIND_LOCAL_CALLER_FRAME_POINTERS, NULL, 0);
        }
        start = is_code ? from : 0;
        end = is_code ? to : 0;
    }
}

// And of the code that V8 has compiled beforehand, where it is in the program, without a table.
static void tell_of_builtins(void) {
    const void *(*code)(void);
    uint32_t (*size)(void);
    *(void **)&code = dlsym(RTLD_DEFAULT, "_ZN2v88internal23DefaultEmbeddedBlobCodeEv");
    *(void **)&size = dlsym(RTLD_DEFAULT, "_ZN2v88internal27DefaultEmbeddedBlobCodeSizeEv");
    if (code && size) unwind_local_tell_code(code(), size(), UNWIND_LOCAL_CALLER_FRAME_POINTERS, NULL, 0);
}

static bool tells_of_compiled_code;

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    unwind_local_end end;
    if (tells_of_compiled_code) tell_of_compiled_code();
    truth_count = unwind_local_backtrace_of(context, truth_list, MOST, &end);
    truth_is_complete = end.complete;
    truth_number++;
    truth_stop();
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
    const char *seed = getenv("TRUTH_SEED");
    if (seed) random_state = (unsigned)atoi(seed);
    const char *compiled = getenv("TRUTH_COMPILED");
    tells_of_compiled_code = compiled && *compiled;
    if (tells_of_compiled_code) tell_of_builtins();
    unwind_local_prepare();
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGPROF;
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) != 0) return;
    const char *late = getenv("TRUTH_LATE");
    if (!late || !*late) return take_the_signal();
    pthread_t thread;
    (void)pthread_create(&thread, NULL, later, (void *)(uintptr_t)atoi(late));
}
