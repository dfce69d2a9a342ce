// The storm for C libraries without call frame information, as musl: threads that allocate, load
// libraries, fork, start threads and compute, each interrupted by a timer. A stack that begins in
// the C library is not complete there; frames that no guess led to are right in any case, and a
// stack that begins in the program's own code is known up to the C library.
//
//   plain SECONDS MICROSECONDS [FOLDER of plugin1.so and plugin2.so]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unwind_local.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { MOST = 64, THREADS = 8, AFTER_GAP = 1 << 6 };

// The linker's names for the ends of these sections.
extern char __start_known_work[], __stop_known_work[];
extern char __start_known_body[], __stop_known_body[];

// In storage that the thread has from its start on: a handler may use it at any point.
static _Thread_local volatile uintptr_t outer;

static atomic_long handlers, wrong, errnos, in_work, in_plugins, cut, children, bad_children;
static atomic_bool stop;
static long period;
static char folder[4096];

static bool is_in(uintptr_t address, const char *start, const char *end) {
    return address > (uintptr_t)start && address <= (uintptr_t)end;
}

static void fail(const char *what, const unwind_local_frame *list, size_t count) {
    if (wrong++ > 3) return;
    dprintf(2, "wrong: %s:", what);
    for (size_t at = 0; at < count; at++) dprintf(2, " %zx/%x", list[at].address, list[at].provenance);
    dprintf(2, "\n");
}

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    int saved = errno;
    errno = 4711;
    unwind_local_frame list[MOST];
    unwind_local_end end;
    size_t count = unwind_local_frames(context, list, MOST, &end);
    if (errno != 4711) errnos++;
    handlers++;
    size_t known = 0, body = MOST;
    while (known < count && !(list[known].provenance & AFTER_GAP)) {
        if (body == MOST && is_in(list[known].address, __start_known_body, __stop_known_body)) body = known;
        known++;
    }
    // The caller of the thread's body is its function, whatever called that is the C library's.
    if (outer && body != MOST && body + 1 < known && list[body + 1].address != outer)
        fail("the caller of the body", list, count);
    if (outer && count && is_in(list[0].address, __start_known_work, __stop_known_work)) {
        in_work++;
        if (body == MOST || body + 1 >= known) {
            cut++;
            fail("cut in the program's own code", list, count);
        }
    }
    errno = saved;
}

#define WORK __attribute__((noinline, section("known_work")))

WORK static int callback(void) {
    in_plugins++;
    for (volatile int at = 0; at < 20000; at = at + 1) {}
    return 0;
}

WORK static int deep(int depth) {
    volatile char room[256];
    room[0] = (char)depth;
    for (volatile int at = 0; at < 100; at = at + 1) {}
    return depth == 0 ? room[0] : deep(depth - 1) + room[0];
}

static void computes(void) { (void)deep(20); }

static void allocates(void) {
    void *list[64];
    for (size_t at = 0; at < 64; at++) list[at] = malloc(at * 100 + 1);
    for (size_t at = 0; at < 64; at++) free(list[at]);
}

static void plugins(void) {
    if (!*folder) return computes();
    for (int number = 1; number <= 2; number++) {
        char name[4200];
        snprintf(name, sizeof name, "%s/plugin%d.so", folder, number);
        void *object = dlopen(name, RTLD_NOW);
        if (!object) abort();
        unwind_local_prepare();
        int (*plugin)(int, int (*)(void));
        *(void **)&plugin = dlsym(object, "plugin");
        (void)plugin(5, callback);
        dlclose(object);
    }
}

static void forks(void) {
    pid_t child = fork();
    if (child == 0) {
        unwind_local_frame list[MOST];
        size_t count = unwind_local_frames(NULL, list, MOST, NULL);
        size_t body = 0;
        while (body < count && !is_in(list[body].address, __start_known_body, __stop_known_body)) body++;
        if (body + 1 >= count || list[body + 1].address != outer) _exit(1);
        if (children % 2) execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    children++;
    if (status != 0) bad_children++;
}

static void *short_thread(void *argument) {
    allocates();
    return argument;
}

static void threads(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, short_thread, NULL) == 0) pthread_join(thread, NULL);
}

static void (*const WORKS[THREADS])(void) = {computes, allocates, plugins, forks, threads, computes, allocates, plugins};

__attribute__((noinline, section("known_body"))) static void body(void (*work)(void)) {
    outer = (uintptr_t)__builtin_return_address(0);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) abort();
    struct itimerspec every = {{0, period * 1000}, {0, period * 1000}};
    timer_settime(timer, 0, &every, NULL);
    while (!stop) work();
    timer_delete(timer);
    outer = 0;
}

__attribute__((noinline)) static void runs(size_t number) {
    static char rooms[THREADS][16384];
    // Half of them on a signal stack, a small one.
    stack_t room = {.ss_sp = rooms[number], .ss_size = sizeof rooms[number]};
    if (number % 2) sigaltstack(&room, NULL);
    body(WORKS[number]);
    __asm__ volatile("");
}

static void *thread(void *argument) {
    runs((size_t)argument);
    __asm__ volatile("");
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int seconds = atoi(argv[1]);
    period = atol(argv[2]);
    if (argc > 3) snprintf(folder, sizeof folder, "%s", argv[3]);
    unwind_local_prepare();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, NULL);
    pthread_t list[THREADS];
    for (size_t at = 0; at < THREADS; at++) pthread_create(&list[at], NULL, thread, (void *)at);
    sleep((unsigned)seconds);
    stop = true;
    for (size_t at = 0; at < THREADS; at++) pthread_join(list[at], NULL);
    printf("handlers %ld, in the program's code %ld, plugins called %ld, children %ld; wrong %ld, cut %ld, "
           "errno changed %ld, children wrong %ld\n",
           handlers, in_work, in_plugins, children, wrong, cut, errnos, bad_children);
    bool is_good = handlers > 100 && in_work > 100 && !wrong && !errnos && !bad_children;
    return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
