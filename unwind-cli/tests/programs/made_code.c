// Spends its time in code that it makes itself, as a just-in-time compiler does, for the seconds
// of CPU time of the second argument. The first says which: `framed` sets a frame up, calls and counts;
// `jumps` has no frame and jumps by a register alone, so that nothing tells where it returns.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

// push rbp; mov rbp, rsp; sub rsp, 16; mov ecx, edi; 1: call 2f; dec ecx; jnz 1b; leave; ret
// 2: push rbp; mov rbp, rsp; mov eax, 100; 3: dec eax; jnz 3b; pop rbp; ret
static const unsigned char framed[] = {
    0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x89, 0xf9, 0xe8, 0x06, 0x00, 0x00, 0x00, 0xff,
    0xc9, 0x75, 0xf7, 0xc9, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0xb8, 0x64, 0x00, 0x00, 0x00, 0xff, 0xc8,
    0x75, 0xfc, 0x5d, 0xc3};

// imul ecx, edi, 100; lea rdx, [rip+7]; lea rsi, [rip+8]; 1: dec ecx; cmovz rdx, rsi; jmp rdx;
// 2: ret. rdx is 1, rsi is 2.
static const unsigned char jumps[] = {
    0x69, 0xcf, 0x64, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x15, 0x07, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x35,
    0x08, 0x00, 0x00, 0x00, 0xff, 0xc9, 0x48, 0x0f, 0x44, 0xd6, 0xff, 0xe2, 0xc3};

typedef void (*made)(int);

__attribute__((noinline)) void caller(made code) {
    code(10000);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    unsigned char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 1;
    if (argv[1][0] == 'f') memcpy(page, framed, sizeof framed);
    else memcpy(page, jumps, sizeof jumps);
    clock_t end = clock() + atoi(argv[2]) * CLOCKS_PER_SEC;
    made code;
    memcpy(&code, &page, sizeof page);
    while (clock() < end) caller(code);
    return 0;
}
