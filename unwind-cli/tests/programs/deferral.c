// Stacks that can be walked later alone, and others.
// deferral read SECONDS: long system calls, by main, reads_all, reads.
// deferral absent SECONDS: 300 frames on a stack whose pages the innermost one drops.
// deferral deep FRAMES: as many frames below main.
// deferral handled SECONDS: computes in a signal handler.
// deferral executes COUNT: a child each that executes `true`.
// deferral mixed SECONDS: signals, a thread each, and a child each of which a thread executes this program.
// deferral touches PAGES: a thread that touches as many new ones.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
enum { STACK = 4 << 20, PAGE = 4096 };

static volatile uint64_t sink;
static double seconds;
static char *stack;
static int file;
static char *self;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// By its own time: on a busy machine a second may leave it next to none.
static double ran(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

NOINLINE static void computes(double until) {
    while (now() < until)
        for (int i = 0; i < 10000; i++) sink += (uint64_t)i;
}

NOINLINE static long reads(int from, char *room, size_t len) {
    long result = read(from, room, len);
    sink++;
    return result;
}

NOINLINE static long reads_all(int from, char *room, size_t len) {
    long result = reads(from, room, len);
    sink += (uint64_t)result;
    return result + 1;
}

// Drops all pages of the stack but those near its own frame.
NOINLINE static void drops(char *here) {
    double end = now() + seconds;
    char *low = (char *)(((uintptr_t)here + 4 * PAGE) & ~(uintptr_t)(PAGE - 1));
    size_t len = (size_t)(stack + STACK - 16 * PAGE - low);
    while (now() < end) {
        msync(low, len, MS_SYNC);
        madvise(low, len, MADV_DONTNEED);
        posix_fadvise(file, low - stack, (off_t)len, POSIX_FADV_DONTNEED);
        computes(now() + 0.004);
    }
    sink++;
}

NOINLINE static void descends(int frames) {
    volatile char room[1000];
    room[frames % 1000] = 1;
    if (frames) descends(frames - 1);
    else drops((char *)room);
    sink += (uint64_t)room[3];
}

static void *on_own_stack(void *unused) {
    descends(300);
    return unused;
}

NOINLINE static void deepens(long frames) {
    volatile char room[8];
    room[0] = 1;
    if (frames) deepens(frames - 1);
    else while (ran() < seconds) computes(now() + 0.001);
    sink += (uint64_t)room[0];
}

NOINLINE static void handles(int signal) {
    computes(now() + 0.002);
    sink += (uint64_t)signal;
}

static void handle_each(int microseconds) {
    signal(SIGALRM, handles);
    struct itimerval each = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &each, NULL);
}

static void *works(void *unused) {
    static char room[1 << 20];
    computes(now() + 0.003);
    reads_all(file, room, sizeof(room));
    return unused;
}

static void *executes(void *unused) {
    execl(self, self, "handled", "0.02", (char *)NULL);
    _exit(1);
    return unused;
}

NOINLINE static void mixes(double until) {
    while (now() < until) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, works, NULL)) exit(1);
        pid_t child = fork();
        if (child == 0) {
            pthread_t executing;
            if (pthread_create(&executing, NULL, executes, NULL)) _exit(1);
            for (;;) computes(now() + 1);
        }
        computes(now() + 0.005);
        pthread_join(thread, NULL);
        waitpid(child, NULL, 0);
    }
}

NOINLINE static void *touches(void *pages) {
    for (long page = 0; page < (long)pages; page++) {
        char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memory[0] = 1;
        munmap(memory, 4096);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    seconds = atof(argv[2]);
    double end = now() + seconds;
    if (!strcmp(argv[1], "read")) {
        int zeroes = open("/dev/zero", O_RDONLY);
        char *room = malloc(32 << 20);
        while (now() < end) reads_all(zeroes, room, 32 << 20);
    } else if (!strcmp(argv[1], "absent")) {
        char name[] = "deferral-stack-XXXXXX";
        file = mkstemp(name);
        unlink(name);
        if (ftruncate(file, STACK)) return 1;
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack, STACK);
        pthread_t thread;
        if (pthread_create(&thread, &attributes, on_own_stack, NULL)) return 1;
        pthread_join(thread, NULL);
    } else if (!strcmp(argv[1], "deep")) {
        seconds = 0.2;
        deepens(atol(argv[2]));
    } else if (!strcmp(argv[1], "handled")) {
        handle_each(5000);
        computes(end);
    } else if (!strcmp(argv[1], "mixed")) {
        self = argv[0];
        file = open("/dev/zero", O_RDONLY);
        handle_each(5000);
        mixes(end);
    } else if (!strcmp(argv[1], "touches")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, touches, (void *)atol(argv[2]))) return 1;
        pthread_join(thread, NULL);
    } else if (!strcmp(argv[1], "executes")) {
        for (long count = atol(argv[2]); count > 0; count--) {
            if (fork() == 0) {
                execl("/bin/true", "true", (char *)NULL);
                _exit(1);
            }
            wait(NULL);
        }
    }
    return 0;
}
