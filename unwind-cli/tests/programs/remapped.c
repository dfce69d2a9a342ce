/* Moves a page of its own code to memory without a file, at the same addresses, as programs do
   that have their code on huge pages, and executes it there. What its first argument says:
   "mremap" moves a copy over the page, "mmap" maps memory over it and copies the code there,
   "other" has other code there, whose bytes are not those of the file, "stay" moves nothing. It then waits for the end
   of its input, or, with a second argument, computes for as many seconds. With a third one it says
   first that it is ready. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define MOVED __attribute__((section("moved"), noinline))

extern char __start_moved[], __stop_moved[];

static volatile unsigned long sink;
static double until;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) void wait_here(void) {
    char byte;
    if (until == 0) {
        puts("ready");
        fflush(stdout);
        while (read(0, &byte, 1) > 0)
            ;
    }
    sink++;
}

MOVED __attribute__((aligned(PAGE))) void moved_inner(void) {
    if (until != 0)
        for (int i = 0; i < 2000000; i++)
            sink += i;
    wait_here();
    sink++;
}

MOVED void moved_outer(void) {
    moved_inner();
    sink++;
}

/* The next page begins here, so that no other code is on that of the two. */
MOVED __attribute__((aligned(PAGE))) void after_moved(void) { sink++; }

__attribute__((noinline)) static void move(const char *how) {
    char *code = __start_moved;
    char copy[PAGE];
    if (strcmp(how, "stay") == 0)
        return;
    memcpy(copy, code, PAGE);
    if (strcmp(how, "mremap") == 0) {
        char *memory = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(memory, copy, PAGE);
        if (mprotect(memory, PAGE, PROT_READ | PROT_EXEC) != 0 ||
            mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, code) != code)
            exit(2);
        return;
    }
    if (strcmp(how, "other") == 0) {
        size_t outer = (char *)moved_outer - code;
        memset(copy, 0x90, PAGE);
        /* push %rbp; mov %rsp,%rbp; movabs $wait_here,%rax; call *%rax; pop %rbp; ret */
        unsigned char made[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0,
                                0,    0,    0,    0xff, 0xd0, 0x5d, 0xc3};
        void *callee = (void *)wait_here;
        memcpy(made + 6, &callee, 8);
        memcpy(copy + outer, made, sizeof made);
    }
    if (mmap(code, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        code)
        exit(2);
    memcpy(code, copy, PAGE);
    if (mprotect(code, PAGE, PROT_READ | PROT_EXEC) != 0)
        exit(2);
}

int main(int count, char **arguments) {
    move(arguments[1]);
    until = count > 2 ? now() + atof(arguments[2]) : 0;
    if (count > 3) {
        puts(arguments[3]);
        fflush(stdout);
    }
    do {
        moved_outer();
    } while (until != 0 && now() < until);
    return (int)(sink & 0);
}
