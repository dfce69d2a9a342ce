// Does something that a reader of its memory may not expect, again and again,
// until standard input ends. What it does is the first argument.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int has_input(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) == 1;
}

// Ends while it is being read.
static int ends(long microseconds) {
    usleep(microseconds);
    _exit(0);
}

// Becomes itself, with other addresses.
static int execs(char **argv) {
    if (has_input()) return 0;
    argv[2] = "again";
    execv("/proc/self/exe", argv);
    return 1;
}

static int forks(void) {
    while (!has_input()) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, 0, 0);
    }
    return 0;
}

static void *nothing(void *depth) {
    // Some end at once, some while they are looked for, some while they are read.
    usleep((uintptr_t)depth * (uintptr_t)depth * 20);
    return 0;
}

// Has eight more threads at a time, which come and go, half of them detached.
static int threads(void) {
    while (!has_input()) {
        pthread_t some[8];
        for (uintptr_t i = 0; i < 8; i++)
            if (pthread_create(&some[i], 0, nothing, (void *)i)) return 1;
        for (int i = 0; i < 8; i++) i % 2 ? pthread_detach(some[i]) : pthread_join(some[i], 0);
    }
    return 0;
}

static void *execs_behind(void *argv) {
    execs(argv);
    exit(0);
}

// The same as execs, but by a thread that takes the place of the first one.
static int thread_execs(char **argv) {
    pthread_t another, third;
    if (pthread_create(&third, 0, nothing, (void *)100)) return 1;
    if (pthread_create(&another, 0, execs_behind, argv)) return 1;
    pthread_join(another, 0);
    return 1;
}

// Maps its own file as code and unmaps it.
static int unmaps(void) {
    int file = open("/proc/self/exe", O_RDONLY);
    while (!has_input()) {
        for (int i = 0; i < 100; i++) {
            void *code = mmap(0, 0x4000, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
            if (code != MAP_FAILED) munmap(code, 0x4000);
        }
    }
    return 0;
}

static uint64_t random_state = 88172645463325252ull;

static uint64_t next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static unsigned char *volatile top, *volatile bottom, *table;
static size_t table_len;

static int find_table(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == 0x6474e554) {
            table = (unsigned char *)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            table_len = info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

// Another process in the same memory, so that it continues while this one is held.
static int writer(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        uint64_t number = next(), word = next();
        size_t words = (top - bottom) / 8;
        uint64_t *stack = (uint64_t *)bottom + number % words;
        switch (number >> 61) {
        case 0: case 1: case 2: *stack = (uint64_t)bottom + word % (top - bottom); break;
        case 3: case 4: *stack = (uint64_t)(void *)writer + word % 256; break;
        case 5: *stack = 0; break;
        default: *stack = word;
        }
        if (table && word % 4 == 0) table[word / 4 % table_len] = (unsigned char)number;
    }
    return 0;
}

__attribute__((noinline)) static int leaf(void) {
    bottom = (unsigned char *)(((uintptr_t)__builtin_frame_address(0) + 64) & ~7ul);
    dl_iterate_phdr(find_table, 0);
    uintptr_t page = (uintptr_t)table & ~4095ul;
    if (table && mprotect((void *)page, (uintptr_t)table + table_len - page, PROT_READ | PROT_WRITE))
        table = 0;
    static unsigned char stack[0x10000];
    if (clone(writer, stack + sizeof stack, CLONE_VM | SIGCHLD, 0) < 0) return 1;
    if (write(1, "ready\n", 6) != 6) return 1;
    while (!has_input()) usleep(1000);
    // Nothing above this frame can be returned to.
    _exit(0);
}

__attribute__((noinline)) static int descend(int depth) {
    volatile int keep = depth;
    int result = depth == 0 ? leaf() : descend(depth - 1);
    return result + (keep - depth);
}

static int is_rewritten(void) {
    unsigned char here;
    top = (unsigned char *)((uintptr_t)&here & ~7ul);
    return descend(40);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "is-rewritten")) return is_rewritten();
    if (argc < 4 || strcmp(argv[2], "again"))
        if (write(1, "ready\n", 6) != 6) return 1;
    if (!strcmp(what, "ends")) return ends(argc > 2 ? atol(argv[2]) : 0);
    if (!strcmp(what, "execs")) return execs(argv);
    if (!strcmp(what, "forks")) return forks();
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "thread-execs")) return thread_execs(argv);
    if (!strcmp(what, "unmaps")) return unmaps();
    return 2;
}
