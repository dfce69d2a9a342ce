# Ways into the kernel and out of it.
#
# Every way in leaves the same picture on a stack, so that one piece of code
# can walk across any of them (see unwind/kernel_stack.rs):
#
#     rsp + 512   Frame: general registers, vector, error code, and the five
#                 words that the CPU pushes (entry.rs has the struct)
#     rsp         512 bytes of x87 and SSE state, as the prebuilt core uses SSE
#
# `Frame` has 176 bytes and the CPU aligns rsp before it pushes, so both are
# 16-byte aligned without further ado.
#
# The prebuilt core has a red zone in a few functions, which no flag of ours
# can change. So nothing may push below the rsp of interrupted kernel code:
#   * interrupts arrive on a stack of their own (IST) and are moved 128 bytes
#     below the interrupted rsp before anything is pushed there;
#   * NMIs and debug traps stay on a stack of their own;
#   * page faults come without IST, since the one place in the kernel that may
#     fault is `copy_user_asm` below.

# The block of a CPU, as in cpu.rs.
    .set KERNEL_STACK_TOP, 8
    .set USER_RSP, 16
    .set NMI_IS_DUE, 24
    .set OWN_TARGET, 32
    .set X87_STATE, 48

    .section .text.entry, "ax"

# ---- vectors 0 to 63 ------------------------------------------------------
# 16 bytes each; the CPU pushes an error code for some.
    .globl vector_stubs
    .align 16
    .set v, 0
vector_stubs:
    .rept 64
    .align 16
    .if !((v == 8) || ((v >= 10) && (v <= 14)) || (v == 17) || (v == 21))
    pushq $0
    .endif
    pushq $v
    .if v == 2
    jmp nmi_entry
    .elseif v >= 32
    jmp move_to_task_stack
    .else
    jmp save_registers
    .endif
    .set v, v + 1
    .endr

    .align 16
    .globl int80_stub
int80_stub:
    pushq $0
    pushq $0x80
    jmp save_registers

# ---- the syscall instruction ----------------------------------------------
# rsp is still the user's, and interrupts are off. gs leads to the block of the
# CPU (cpu.rs) while the kernel runs: each way in from user code exchanges its
# base, and each way out to user code does so last.
    .align 16
    .globl syscall_stub
syscall_stub:
    swapgs
    movq %rsp, %gs:USER_RSP
    movq %gs:KERNEL_STACK_TOP, %rsp
    pushq $0x23                 # user data
    pushq %gs:USER_RSP
    pushq %r11                  # flags
    pushq $0x2b                 # user code, 64 bits
    pushq %rcx                  # rip
    pushq $0
    pushq $0x81
    pushq %rax
    pushq %rcx
    jmp save_rest

# ---- interrupts -------------------------------------------------------------
# On the interrupt stack: vector, error code, rip, cs, rflags, rsp, ss. They go
# to the task's stack: to its top from user mode, else below the red zone.
move_to_task_stack:
    pushq %rax
    pushq %rcx
    testb $3, 40(%rsp)
    jnz 1f
    movq 56(%rsp), %rax
    subq $128, %rax
    andq $-16, %rax
    jmp 2f
1:  swapgs
    movq %gs:KERNEL_STACK_TOP, %rax
2:  .irp from, 64, 56, 48, 40, 32, 24, 16, 8, 0
    movq \from(%rsp), %rcx
    movq %rcx, (\from - 72)(%rax)
    .endr
    movq (%rsp), %rcx
    leaq -72(%rax), %rsp
    jmp save_rest

# ---- NMIs -----------------------------------------------------------------------
# One may come between the exchange of gs and the change from or to user code, so
# the base itself tells whose it is. The error code, which NMIs do not have, keeps
# whether it was exchanged here.
nmi_entry:
    pushq %rax
    pushq %rcx
    pushq %rdx
    movl $0xc0000101, %ecx      # the base of gs
    rdmsr
    testl %edx, %edx            # the kernel's addresses are negative
    js 1f
    swapgs
    movq $1, 32(%rsp)
1:  popq %rdx
    jmp save_rest

# ---- all of them --------------------------------------------------------------
save_registers:
    testb $3, 24(%rsp)
    jz 1f
    swapgs
1:  pushq %rax
    pushq %rcx
save_rest:
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    xorl %ebp, %ebp
    subq $512, %rsp
    .globl whole_frame_start, whole_frame_end
whole_frame_start:              # from here to the end rsp is where it should be
    fxsave64 (%rsp)
    leaq 512(%rsp), %rdi
    call kernel_entry
    jmp restore_registers

# A task's first way out: as if it came from an entry. `Frame` and SSE state
# are on its stack already.
    .globl first_return
first_return:
    leaq 512(%rsp), %rdi
    call leave_for_the_first_time

# Kernel code does not use x87. So this CPU still has the x87 state of the frame, unless
# another task has changed it meanwhile: then its control word, its status word, or the
# registers in use (the first five bytes) differ, or there are registers in use. Else SSE
# state is all to restore. This spares `fxrstor64` not for its time: QEMU 7.2 clears a flag
# of the first CPU in it, without a lock, in the word that says whether that CPU is in an
# NMI. On several CPUs an NMI has come within an NMI so.
restore_registers:
    cli                         # the CPU stays the same
    fxsave64 %gs:X87_STATE      # an NMI that comes now leaves the same there
    movq %gs:X87_STATE, %rax
    xorq (%rsp), %rax
    shlq $24, %rax
    jnz 1f
    cmpb $0, 4(%rsp)
    je 2f
1:  fxrstor64 (%rsp)
    jmp 3f
2:  ldmxcsr 24(%rsp)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps 160 + 16 * \n(%rsp), %xmm\n
    .endr
3:  addq $512, %rsp
whole_frame_end:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    cmpb $2, 8(%rsp)            # vector
    je 1f
    testb $3, 32(%rsp)          # cs
    jz 2f
    cmpb $0, %gs:NMI_IS_DUE
    jne nmi_at_the_first_instruction
    swapgs
    jmp 2f
1:  testb $1, 16(%rsp)          # error code
    jz 2f
    swapgs
2:  popq %rax
    addq $16, %rsp
    iretq

# The counter of instructions has overflowed: the interrupt controller is told, and the
# NMI comes between here and the first user instructions, as that of a counter does.
nmi_at_the_first_instruction:
    movb $0, %gs:NMI_IS_DUE
    pushq %rcx
    movl %gs:OWN_TARGET, %ecx
    movabsq $0xfffffffffee00310, %rax
    movl %ecx, (%rax)           # to this CPU
    popq %rcx
    swapgs
    movl $0x4400, -16(%rax)     # an NMI
    popq %rax
    addq $16, %rsp
    iretq

    .text

# A kernel thread's first steps: rbx is its function, r12 the argument. The
# chain of frame pointers ends here, and the stack with a return address of
# zero.
    .globl first_run
    .type first_run, @function
first_run:
    pushq $0
    xorl %ebp, %ebp
    movq %r12, %rdi
    movq %rbx, %rsi
    jmp thread_runs_for_the_first_time
    .size first_run, . - first_run

# start_user(rdi: a stack with `Frame` and SSE state): the way out of a kernel
# thread that becomes a user task.
    .globl start_user
    .type start_user, @function
start_user:
    movq %rdi, %rsp
    jmp first_return
    .size start_user, . - start_user

# switch_stacks(rdi: where to keep the old rsp, rsi: the new rsp)
#
# Until the new rbp is there, both stacks are the same distance from it.
    .globl switch_stacks
    .type switch_stacks, @function
switch_stacks:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    pushq %rbx
    .cfi_def_cfa_offset 24
    pushq %r12
    .cfi_def_cfa_offset 32
    pushq %r13
    .cfi_def_cfa_offset 40
    pushq %r14
    .cfi_def_cfa_offset 48
    pushq %r15
    .cfi_def_cfa_offset 56
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    .cfi_def_cfa_offset 48
    popq %r14
    .cfi_def_cfa_offset 40
    popq %r13
    .cfi_def_cfa_offset 32
    popq %r12
    .cfi_def_cfa_offset 24
    popq %rbx
    .cfi_def_cfa_offset 16
    popq %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size switch_stacks, . - switch_stacks

# copy_user_asm(rdi: to, rsi: from, rdx: bytes) -> rax: 0, or 1 if it faulted
# for good. The page-fault handler continues at the last label then.
    .globl copy_user_asm, copy_user_access, copy_user_failed
    .type copy_user_asm, @function
copy_user_asm:
    .cfi_startproc
    movq %rdx, %rcx
    xorl %eax, %eax
copy_user_access:
    rep movsb
    ret
copy_user_failed:
    movl $1, %eax
    ret
    .cfi_endproc
    .size copy_user_asm, . - copy_user_asm

# call_on_stack(rdi: function, rsi: its argument, rdx: stack top)
    .globl call_on_stack
    .type call_on_stack, @function
call_on_stack:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    movq %rdi, %rax
    movq %rsi, %rdi
    movq %rdx, %rsp
    call *%rax
    movq %rbp, %rsp
    popq %rbp
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size call_on_stack, . - call_on_stack
