// Executes for some seconds what a walk in the kernel may be led astray by, or wait for.
// hostile_stacks registers SECONDS: stack and frame pointers that lead to no stack.
// hostile_stacks loops SECONDS: a frame of a signal that returns to itself.
// hostile_stacks files SECONDS COUNT: as many files with code, in the current folder.
// hostile_stacks mappings SECONDS COUNT: one file with code at as many places.
// hostile_stacks remaps SECONDS: code that is mapped and unmapped all the time.
// hostile_stacks faults SECONDS: a stack in memory that the program itself has to bring in, which it does not.
// hostile_stacks drops SECONDS: the same, which it brings in, drops, and in the end does not bring in.
// hostile_stacks file SECONDS PATH: a stack in that file.
// hostile_stacks code SECONDS PATH OFFSET: code at this place of that file.
// hostile_stacks executes COUNT: threads that replace the program by itself.
// hostile_stacks leaves COUNT: processes whose first thread ends first.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static double seconds;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Counts down with a stack pointer and a frame pointer that were given to it. Its caller is in the word at the
// stack pointer, as of any function that has just been called.
__asm__(".pushsection .spins, \"ax\", @progbits\n"
        ".balign 4096\n"
        ".globl spins_start\n"
        "spins_start:\n"
        ".type spins, @function\n"
        ".globl spins\n"
        "spins:\n"
        ".cfi_startproc\n"
        "mov %rsp, %r8\n"
        "mov %rbp, %r9\n"
        "mov %rdi, %rsp\n"
        "mov %rsi, %rbp\n"
        ".globl spins_here\n"
        "spins_here:\n"
        "1: dec %rdx\n"
        "jnz 1b\n"
        "mov %r8, %rsp\n"
        "mov %r9, %rbp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size spins, .-spins\n"
        ".balign 4096\n"
        ".popsection\n");
void spins(uint64_t sp, uint64_t fp, uint64_t rounds);
extern char spins_start[], spins_here[];
typedef void code(uint64_t sp, uint64_t fp, uint64_t rounds);

// About a millisecond.
enum { ROUNDS = 3000000 };

static int has_registers(double end) {
    static uint64_t stack[64];
    uint64_t odd[] = {0, 1, 8, 0xfff, 0x1000, ~0ull, ~7ull, 1ull << 47, (1ull << 47) - 8, (1ull << 47) - 4096,
                      0xffff800000000000, 0xffffffff81000000, 0xffffffffff600000, 0x8000000000000000,
                      0x7fffffffffffffff, (uint64_t)stack + 3, (uint64_t)(stack + 64) - 4};
    uint64_t count = sizeof odd / sizeof *odd, seed = 1;
    for (int i = 0; i < 64; i++) stack[i] = (uint64_t)spins_here;
    while (now() < end) {
        for (uint64_t i = 0; i < count; i++) spins(odd[i], odd[(i * 7 + seed) % count], ROUNDS);
        seed = seed * 6364136223846793005 + 1;
        spins(seed, seed >> 3, ROUNDS);
        spins((uint64_t)stack, seed >> 17, ROUNDS);
        for (int i = 0; i < 64; i++) stack[i] = odd[(seed >> i) % count];
        spins((uint64_t)stack, (uint64_t)stack, ROUNDS);
        for (int i = 0; i < 64; i++) stack[i] = (uint64_t)spins_here;
    }
    return 0;
}

static void handles(int signal) { (void)signal; }

static int has_loop(double end) {
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } action;
    static uint64_t stack[64];
    signal(SIGUSR1, handles);
    if (syscall(SYS_rt_sigaction, SIGUSR1, 0, &action, 8)) return 1;
    // The caller is what returns from signals; the registers that it restores, of which the stack pointer is
    // the 16th and the pc the 17th word of the context, are those of now.
    stack[0] = (uint64_t)action.restorer;
    for (int i = 1; i < 64; i++) stack[i] = (uint64_t)stack;
    stack[1 + 5 + 16] = (uint64_t)spins_here;
    while (now() < end) spins((uint64_t)stack, (uint64_t)stack, ROUNDS);
    return 0;
}

// The bytes of this program.
static char *own(size_t *len) {
    int file = open("/proc/self/exe", O_RDONLY);
    *len = (size_t)lseek(file, 0, SEEK_END);
    return mmap(0, *len, PROT_READ, MAP_PRIVATE, file, 0);
}

// Where the code is in the file.
static size_t place(void) {
    size_t len;
    char *bytes = own(&len);
    for (size_t at = 0; at < len; at += PAGE)
        if (!memcmp(bytes + at, spins_start, PAGE)) return at;
    exit(1);
}

static code *map_code(int file, size_t at, uint64_t where) {
    int flags = MAP_PRIVATE | (where ? MAP_FIXED_NOREPLACE : 0);
    void *mapped = mmap((void *)where, PAGE, PROT_READ | PROT_EXEC, flags, file, (off_t)at);
    return mapped == MAP_FAILED ? 0 : (code *)mapped;
}

static int has_files(double end, long count) {
    size_t len, at = place();
    char *bytes = own(&len), name[64];
    uint64_t stack[2] = {0};
    code **all = calloc((size_t)count, sizeof *all);
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "code-%ld", i);
        int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0700);
        if (file < 0 || write(file, bytes, len) != (ssize_t)len) return 1;
        if (!(all[i] = map_code(file, at, 0))) return 1;
        close(file);
        unlink(name);
    }
    for (long i = 0; now() < end; i = (i + 1) % count) all[i]((uint64_t)stack, 0, ROUNDS / 2);
    return 0;
}

static int has_mappings(double end, long count) {
    size_t at = place();
    uint64_t stack[2] = {0}, where = 0x200000000000;
    int file = open("/proc/self/exe", O_RDONLY);
    for (long i = 0; i < count; i++)
        if (!map_code(file, at, where + 2 * PAGE * (uint64_t)i)) return 1;
    for (long i = 0; now() < end; i = (i + 1) % count)
        ((code *)(where + 2 * PAGE * (uint64_t)i))((uint64_t)stack, 0, ROUNDS / 2);
    return 0;
}

static void *maps_and_unmaps(void *until) {
    size_t at = place();
    int file = open("/proc/self/exe", O_RDONLY);
    while (now() < *(double *)until) {
        code *mapped = map_code(file, at, 0);
        if (!mapped || munmap((void *)mapped, PAGE)) exit(1);
    }
    return 0;
}

static int has_changes(double end) {
    size_t at = place();
    uint64_t stack[2] = {0};
    pthread_t thread;
    int file = open("/proc/self/exe", O_RDONLY);
    if (pthread_create(&thread, 0, maps_and_unmaps, &end)) return 1;
    while (now() < end) {
        code *mapped = map_code(file, at, 0);
        if (!mapped) return 1;
        mapped((uint64_t)stack, 0, ROUNDS / 10);
        if (munmap((void *)mapped, PAGE)) return 1;
    }
    return pthread_join(thread, 0);
}

static char *room;

static void *spins_there(void *where) {
    for (;;) spins((uint64_t)where, 0, ROUNDS);
}

// Code without a table: its stack is copied.
static void *spins_outside(void *where) {
    code *copy = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy((void *)copy, spins_start, PAGE);
    for (;;) copy((uint64_t)where, 0, ROUNDS);
}

static int waits_for_faults(double end, int drops) {
    size_t len = 16 * PAGE;
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC | (drops ? O_NONBLOCK : 0));
    struct uffdio_api api = {.api = UFFD_API};
    room = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {(uintptr_t)room, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) return 1;
    if (room == MAP_FAILED || ioctl(faults, UFFDIO_REGISTER, &range)) return 1;
    pthread_t thread;
    for (int i = 0; i < (drops ? 4 : 1); i++)
        if (pthread_create(&thread, 0, drops ? spins_outside : spins_there, room + 64)) return 1;
    while (drops && now() < end - seconds / 2) {
        struct uffd_msg message;
        if (read(faults, &message, sizeof message) == sizeof message) {
            struct uffdio_zeropage zeroes = {.range = {message.arg.pagefault.address & ~4095ull, PAGE}};
            ioctl(faults, UFFDIO_ZEROPAGE, &zeroes);
        } else {
            madvise(room, len, MADV_DONTNEED);
        }
    }
    while (now() < end) usleep(10000);
    return 0;
}

static int has_stack_in(double end, const char *path) {
    int file = open(path, O_RDWR);
    room = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (file < 0 || room == MAP_FAILED) return 1;
    pthread_t thread;
    if (pthread_create(&thread, 0, spins_there, room + 64)) return 1;
    while (now() < end) usleep(10000);
    return 0;
}

static int has_code_in(double end, const char *path, size_t at) {
    int file = open(path, O_RDONLY);
    code *mapped = map_code(file, at, 0);
    uint64_t stack[2] = {0};
    if (!mapped) return 1;
    while (now() < end) mapped((uint64_t)stack, 0, ROUNDS);
    return 0;
}

static char **arguments;

static void *executes(void *unused) {
    spins((uint64_t)&arguments, 0, ROUNDS);
    execv("/proc/self/exe", arguments);
    return unused;
}

static void *outlives(void *unused) {
    usleep(2000);
    spins((uint64_t)&arguments, 0, ROUNDS);
    return unused;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    long count = argc > 3 ? atol(argv[3]) : 0;
    pthread_t thread;
    if (argc < 3) return 2;
    seconds = atof(argv[2]);
    double end = now() + seconds;
    if (!strcmp(what, "registers")) return has_registers(end);
    if (!strcmp(what, "loops")) return has_loop(end);
    if (!strcmp(what, "files")) return has_files(end, count);
    if (!strcmp(what, "mappings")) return has_mappings(end, count);
    if (!strcmp(what, "remaps")) return has_changes(end);
    if (!strcmp(what, "faults")) return waits_for_faults(end, 0);
    if (!strcmp(what, "drops")) return waits_for_faults(end, 1);
    if (!strcmp(what, "file")) return has_stack_in(end, argv[3]);
    if (!strcmp(what, "code")) return has_code_in(end, argv[3], argc > 4 ? strtoul(argv[4], 0, 0) : place());
    if (!strcmp(what, "executes")) {
        char left[16];
        snprintf(left, sizeof left, "%ld", atol(argv[2]) - 1);
        if (atol(argv[2]) <= 0) return 0;
        arguments = (char *[]){argv[0], argv[1], left, 0};
        if (pthread_create(&thread, 0, executes, 0)) return 1;
        for (;;) pause();
    }
    if (!strcmp(what, "leaves")) {
        for (long left = atol(argv[2]); left > 0; left--) {
            if (fork() == 0) {
                pthread_create(&thread, 0, outlives, 0);
                pthread_exit(0);
            }
            wait(0);
        }
        return 0;
    }
    return 2;
}
