// Spends its time where a function asks for a larger stack, as OCaml 5 does it: by code after the function's end, whose
// call frame information says that the function has its frame. Without an argument it waits there.
#include <unistd.h>

static volatile long sum;

__attribute__((used, noinline)) static void grows(long rounds) {
    for (long i = 0; i < rounds; i++) sum += i;
    if (!rounds && write(1, "ready\n", 6) == 6) pause();
}

void function(long rounds);

asm(".globl caml_call_realloc_stack\n"
    ".type caml_call_realloc_stack, @function\n"
    "caml_call_realloc_stack:\n"
    "    .cfi_startproc\n"
    "    .cfi_signal_frame\n"
    "    push %rdi\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    call grows\n"
    "    pop %rdi\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    ret\n"
    "    .cfi_endproc\n"
    "    .size caml_call_realloc_stack, . - caml_call_realloc_stack\n"
    ".globl function\n"
    ".type function, @function\n"
    "function:\n"
    "    .cfi_startproc\n"
    "    xor %r11d, %r11d\n"
    "    jmp 2f\n"
    "1:  inc %r11d\n"
    "    sub $40, %rsp\n"
    "    .cfi_adjust_cfa_offset 40\n"
    "    add $40, %rsp\n"
    "    .cfi_adjust_cfa_offset -40\n"
    "    ret\n"
    "    .cfi_adjust_cfa_offset 40\n"
    "2:  push $34\n"
    "    .cfi_adjust_cfa_offset 8\n"
    "    call caml_call_realloc_stack\n"
    "    pop %r10\n"
    "    .cfi_adjust_cfa_offset -8\n"
    "    jmp 1b\n"
    "    .cfi_endproc\n"
    "    .size function, . - function\n");

__attribute__((noinline)) static void calls(long rounds) {
    volatile long kept[8] = {rounds};
    function(kept[0]);
    kept[1] = kept[0];
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc < 2) calls(0);
    for (int i = 0; i < 1500; i++) calls(2000000);
    return 0;
}
