# From QEMU's PVH entry (32-bit, paging off) to long mode in the higher half.

    .section .note.Xen, "a", @note
    .align 4
    .long 4, 8, 18              # XEN_ELFNOTE_PHYS32_ENTRY, 8 bytes
    .asciz "Xen"
    .align 4
    .quad start_pvh

    .section .boot.text, "awx"
    .code32
    .globl start_pvh
start_pvh:
    cli
    movl %ebx, %edi             # the start information
    movl $boot_pml4, %eax
    movl %eax, %cr3
    # PAE, and SSE: the prebuilt core uses it, so it is on before any Rust code.
    movl $0x620, %eax           # PAE | OSFXSR | OSXMMEXCPT
    movl %eax, %cr4
    movl $0xc0000080, %ecx
    rdmsr
    orl  $0x901, %eax           # EFER: NXE | LME | SCE
    wrmsr
    movl $0x80010033, %eax      # PG | WP | NE | ET | MP | PE, EM = 0
    movl %eax, %cr0
    lgdt boot_gdtr
    ljmp $0x08, $1f
    .code64
1:  xorl %eax, %eax
    movl %eax, %ss
    movabsq $boot_stack_top, %rsp
    xorl %ebp, %ebp
    movabsq $kernel_main, %rax
    pushq $0
    jmp *%rax

# The other CPUs' way: from real mode. Copied to TRAMPOLINE, where they start.
    .set TRAMPOLINE, 0x8000
    .code16
    .globl trampoline_start, trampoline_end
trampoline_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl trampoline_gdtr - trampoline_start + TRAMPOLINE
    movl $0x620, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl  $0x901, %eax
    wrmsr
    movl $0x80010033, %eax
    movl %eax, %cr0
    ljmpl $0x08, $1f
    .align 4
trampoline_gdtr: .word 15
    .long boot_gdt
trampoline_end:
    .code64
1:  xorl %eax, %eax
    movl %eax, %ss
    movabsq $next_cpu_stack, %rax
    movq (%rax), %rsp
    xorl %ebp, %ebp
    movabsq $next_cpu_main, %rax
    pushq $0
    jmp *%rax

    .section .boot.data, "aw"
    .align 8
boot_gdt: .quad 0, 0x00af9b000000ffff
boot_gdtr: .word 15
    .long boot_gdt
    .align 4096
    .globl boot_pml4
boot_pml4: .quad boot_pdpt_low + 3
    .fill 510, 8, 0
    .quad boot_pdpt_high + 3
boot_pdpt_low: .quad boot_pd + 3
    .fill 511, 8, 0
boot_pdpt_high: .fill 510, 8, 0
    .quad boot_pd + 3, boot_pd_devices + 3
    # At -2 GiB the first GiB of memory, at -1 GiB the last one below 4 GiB,
    # where the interrupt controllers are (uncached).
    .set i, 0
boot_pd: .rept 512
    .quad (i << 21) + 0x83
    .set i, i + 1
    .endr
    .set i, 0
boot_pd_devices: .rept 512
    .quad 0xc0000000 + (i << 21) + 0x9b
    .set i, i + 1
    .endr

    .bss
    .align 4096
    .globl boot_stack, boot_stack_top
boot_stack:
    .fill 16384
boot_stack_top:
