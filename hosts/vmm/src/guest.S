// The guest: user code, and a kernel that it enters by system calls, both without frame pointers.
//
// Each has a chain of calls that a number spells: the function at depth N is `one` or `zero` as bit
// N - 1 of r15 says, and r14 counts how deep it is. So from the registers alone it is known which
// stack is right. r13 is the user's number, shifted, in the kernel, too. rbp has a number that is no frame pointer.
//
//     user:    start, 18 times zero or one, leaf          rows in .eh_frame
//     kernel:  entry, main, 9 times zero or one, leaf     rows in ORC tables, as Linux has them

#define ORC_CALL        2
#define ORC_REGISTERS   3
#define ORC_PARTIAL     4
#define ORC_SP          5
#define ORC_INTERRUPTED 8

// The kernel's code from here on has such frames.
.macro orc kind, base=0, offset=0
8080:   .pushsection .orc_unwind_ip, "a"
        .long   8080b - .
        .popsection
        .pushsection .orc_unwind, "a"
        .short  \offset, 0
        .byte   \base, \kind
        .popsection
.endm

// From here on the CFA is this number of bytes above the stack pointer.
.macro user_cfa bytes
        .cfi_def_cfa_offset \bytes
.endm
.macro kernel_cfa bytes
        orc     ORC_CALL, ORC_SP, \bytes
.endm

.macro function side, name
        .globl  \side\()_\name
        .type   \side\()_\name, @function
\side\()_\name:
        .ifc    \side, user
        .cfi_startproc
        .endif
.endm
.macro end side, name
        .ifc    \side, user
        .cfi_endproc
        .endif
        .size   \side\()_\name, . - \side\()_\name
.endm

// Calls the next function of the chain.
.macro call_next side, name, depth
        cmp     $\depth, %r14
        jae     3f
        bt      %r14, %r15
        jc      2f
        call    \side\()_zero
        .globl  \side\()_\name\()_after_zero
\side\()_\name\()_after_zero:
        jmp     4f
2:      call    \side\()_one
        .globl  \side\()_\name\()_after_one
\side\()_\name\()_after_one:
        jmp     4f
3:      call    \side\()_leaf
        .globl  \side\()_\name\()_after_leaf
\side\()_\name\()_after_leaf:
4:
.endm

// The two functions of the chain, with frames of different sizes.
.macro chain side, depth, small, large
        function \side, zero
        \side\()_cfa 8
        inc     %r14
        sub     $\small, %rsp
        \side\()_cfa \small + 8
        call_next \side, zero, \depth
        add     $\small, %rsp
        \side\()_cfa 8
        dec     %r14
        .globl  \side\()_zero_ret
\side\()_zero_ret:
        ret
        end     \side, zero

        function \side, one
        \side\()_cfa 8
        inc     %r14
        push    %rbx
        \side\()_cfa 16
        sub     $\large, %rsp
        \side\()_cfa \large + 16
        call_next \side, one, \depth
        add     $\large, %rsp
        \side\()_cfa 16
        pop     %rbx
        \side\()_cfa 8
        dec     %r14
        .globl  \side\()_one_ret
\side\()_one_ret:
        ret
        end     \side, one
.endm

        .section .user, "ax", @progbits

        function user, start
        .cfi_undefined rip
        mov     $0x5eed, %r13d
        mov     $0x0123456789abcdef, %rbp
1:      imul    $1103515245, %r13, %r13
        add     $12345, %r13
        mov     %r13, %r15
        shr     $16, %r15
        xor     %r14d, %r14d
        .cfi_def_cfa rsp, 8
        call_next user, start, 18
        jmp     1b
        end     user, start

        chain   user, 18, 568, 696

        function user, leaf
        inc     %r14
        mov     $200000, %eax
1:      dec     %eax
        jnz     1b
        mov     %r13, %rdi
        int3
        dec     %r14
        .globl  user_leaf_ret
user_leaf_ret:
        ret
        end     user, leaf

        .section .kernel, "ax", @progbits

// What `int3` leads to. The CPU has saved the user's pc, stack pointer and segments on the kernel's stack; all other
// registers are saved below, in Linux's order.
        function kernel, entry
        .set    .Lsaved, 0
        .irp    register, rax, rdi, rsi, rdx, rcx, rax, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15
        orc     ORC_PARTIAL | ORC_INTERRUPTED, ORC_SP, .Lsaved
        push    %\register
        .set    .Lsaved, .Lsaved + 8
        .endr
        orc     ORC_REGISTERS | ORC_INTERRUPTED, ORC_SP, 0
        mov     %rdi, %r15
        shr     $20, %r15
        xor     %r14d, %r14d
        mov     $0xfedcba98, %ebp
        call    kernel_main
        .globl  kernel_entry_after_main
kernel_entry_after_main:
        .irp    register, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi
        pop     %\register
        .set    .Lsaved, .Lsaved - 8
        orc     ORC_PARTIAL | ORC_INTERRUPTED, ORC_SP, .Lsaved
        .endr
        add     $8, %rsp
        orc     ORC_PARTIAL | ORC_INTERRUPTED, ORC_SP, 0
        iretq
        end     kernel, entry

        function kernel, main
        kernel_cfa 8
        sub     $24, %rsp
        kernel_cfa 32
        call_next kernel, main, 9
        add     $24, %rsp
        kernel_cfa 8
        ret
        end     kernel, main

        chain   kernel, 9, 216, 328

        function kernel, leaf
        kernel_cfa 8
        inc     %r14
        mov     $40, %eax
1:      dec     %eax
        jnz     1b
        dec     %r14
        .globl  kernel_leaf_ret
kernel_leaf_ret:
        ret
        end     kernel, leaf
        orc     0                               // no code

        .section .note.GNU-stack, "", @progbits
