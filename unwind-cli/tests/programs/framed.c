// Spends its time at the end of a chain of calls. Each function keeps a frame pointer, from the first
// instruction of the program on: there is no C library.
static volatile unsigned long sink;

#ifndef ROUNDS
#define ROUNDS 300000
#endif

__attribute__((noinline)) static unsigned long innermost(unsigned long x) {
    // A function that calls no other has no frame pointer unless it asks for it.
    asm volatile("" : : "r"(__builtin_frame_address(0)));
    for (int i = 0; i < 1000; i++) x = x * 6364136223846793005ul + 1442695040888963407ul;
    sink = x;
    return x;
}

__attribute__((noinline)) static unsigned long nested(unsigned depth, unsigned long x) {
    unsigned long result = depth ? nested(depth - 1, x) + 1 : innermost(x);
    sink = result;
    return result ^ x;
}

__attribute__((used)) static void run(void) {
    unsigned long x = 1;
    for (int i = 0; i < ROUNDS; i++) x = nested(10, x) + 3;
}

asm(".globl _start\n"
    ".type _start, @function\n"
    "_start:\n"
    "    .cfi_startproc\n"
    "    .cfi_undefined rip\n"
    "    xor %ebp, %ebp\n"
    "    call run\n"
    "    mov $60, %eax\n"
    "    xor %edi, %edi\n"
    "    syscall\n"
    "    .cfi_endproc\n"
    "    .size _start, . - _start\n");
