// Code that the program makes, and a backtrace through it: what a JIT compiler does.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind_local.h>

static void *addresses[64];
static size_t count;
static unwind_local_end end;

static void callback(void) { count = unwind_local_backtrace(addresses, 64, &end); }

int main(void) {
    // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
    static const unsigned char made[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    unwind_local_prepare();
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return EXIT_FAILURE;
    memcpy(code, made, sizeof made);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0) return EXIT_FAILURE;

    uint64_t number = unwind_local_tell_code(code, 4096, UNWIND_LOCAL_FRAME_POINTERS, NULL, 0);
    if (number == 0) return EXIT_FAILURE;
    void (*function)(void (*)(void));
    memcpy(&function, &code, sizeof function);
    function(callback);

    // Nothing runs it any more.
    unwind_local_forget_code(number);
    munmap(code, 4096);
    for (size_t at = 0; at < count; at++) printf("%p\n", addresses[at]);
    printf("%s\n", unwind_local_end_text(end.code));
    return end.complete && count > 3 ? EXIT_SUCCESS : EXIT_FAILURE;
}
