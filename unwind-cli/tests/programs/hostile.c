// Does once what may keep a reader of it busy, blocked or wrong, says so, and
// waits for the end of standard input. What it does is the first argument.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

// Maps a file as code, and puts something else in its place.
static int replaces(const char *path, const char *what) {
    int file = open(path, O_RDONLY);
    void *code = mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (file < 0 || code == MAP_FAILED || unlink(path)) return 1;
    if (!strcmp(what, "fifo")) return mkfifo(path, 0600);
    if (!strcmp(what, "terminal")) return symlink("/dev/ptmx", path);
    return mkdir(path, 0700);
}

// Maps the first page of a file as code, as often as it is told, none beside another.
static int maps_a_file(const char *path, long count) {
    int file = open(path, O_RDONLY);
    uint64_t at = 0x200000000000;
    for (long i = 0; i < count; i++, at += 2 * PAGE) {
        int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
        if (mmap((void *)at, PAGE, PROT_READ | PROT_EXEC, flags, file, 0) == MAP_FAILED) return 1;
    }
    return file < 0;
}

// Maps as many files as code as it is told: links to the one of that path.
static int maps_files(const char *path, long count) {
    char name[256];
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s.%ld", path, i);
        if (link(path, name)) return 1;
        int file = open(name, O_RDONLY);
        if (mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
        close(file);
    }
    return 0;
}

// Has as many ranges of code as it is told, without a file.
static int maps_nothing(long count) {
    uint64_t at = 0x200000000000;
    for (long i = 0; i < count; i++, at += 2 * PAGE) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap((void *)at, PAGE, PROT_READ | PROT_EXEC, flags, -1, 0) == MAP_FAILED) return 1;
    }
    return 0;
}

static void *waits(void *none) {
    pause();
    return none;
}

// Has as many threads as it is told, whose names are as long as they may be.
static int has_threads(long count) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) || pthread_attr_setstacksize(&attr, 64 << 10)) return 1;
    for (long i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, waits, 0)) return 1;
        pthread_setname_np(thread, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    }
    return 0;
}

// Waits for a byte with its frame pointer there, and its stack pointer a little
// below.
static int waits_with_frame_pointer(char *frame) {
    if (write(1, "ready\n", 6) != 6) return 1;
    char byte;
    // read(0, &byte, 1)
    __asm__ volatile(
        "mov %%rbp, %%r12; mov %%rsp, %%r13; mov %0, %%rbp; lea -16(%%rbp), %%rsp;"
        "xor %%eax, %%eax; syscall; mov %%r12, %%rbp; mov %%r13, %%rsp"
        :
        : "r"(frame), "D"(0L), "S"(&byte), "d"(1L)
        : "rax", "rcx", "r11", "r12", "r13", "memory");
    return 0;
}

// Has a chain of as many frame pointers as it is told.
static int has_a_chain(long frames) {
    uintptr_t (*chain)[2] = mmap((void *)0x7f0000000000, frames * sizeof *chain,
                                 PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chain == MAP_FAILED) return 1;
    for (long i = 0; i < frames; i++) {
        chain[i][0] = (uintptr_t)&chain[i + 1];
        chain[i][1] = (uintptr_t)has_a_chain + 16;
    }
    return waits_with_frame_pointer((char *)&chain[1]);
}

// Has a chain of as many frame pointers as it is told, each in a mapping of its own.
static int has_a_chain_of_places(long frames) {
    char *room = mmap(0, 2 * PAGE * (frames + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return 1;
    for (long i = 0; i < frames; i++) {
        char *page = room + 2 * PAGE * i;
        if (mprotect(page, PAGE, PROT_READ | PROT_WRITE)) return 1;
        uintptr_t *frame = (uintptr_t *)(page + 64);
        frame[0] = i + 1 < frames ? (uintptr_t)frame + 2 * PAGE : 0;
        frame[1] = (uintptr_t)has_a_chain_of_places + 16;
    }
    return waits_with_frame_pointer(room + 64);
}

// Has its frame pointer in a page that is never brought in: whoever waits for it
// waits for this very program.
static int has_a_page_that_never_comes(void) {
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
        .range = {(uintptr_t)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) return 1;
    if (page == MAP_FAILED || ioctl(faults, UFFDIO_REGISTER, &range)) return 1;
    return waits_with_frame_pointer(page + 64);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *path = argc > 2 ? argv[2] : "";
    long count = argc > 3 ? atol(argv[3]) : 0;
    int failed = 2;
    if (!strcmp(what, "replaces")) failed = replaces(path, argv[3]);
    if (!strcmp(what, "maps-a-file")) failed = maps_a_file(path, count);
    if (!strcmp(what, "maps-files")) failed = maps_files(path, count);
    if (!strcmp(what, "maps-nothing")) failed = maps_nothing(count);
    if (!strcmp(what, "threads")) failed = has_threads(atol(path));
    if (!strcmp(what, "chain")) return has_a_chain(atol(path));
    if (!strcmp(what, "places")) return has_a_chain_of_places(atol(path));
    if (!strcmp(what, "page-never-comes")) return has_a_page_that_never_comes();
    if (failed || write(1, "ready\n", 6) != 6) return 1;
    char byte;
    return read(0, &byte, 1) < 0;
}
