//! A small kernel that embeds the unwinder, written for readers who embed it
//! into their own kernel.
//!
//! It boots under QEMU, runs user programs of several kinds, samples them by
//! NMIs, and sends the samples and the stacks that it delivers out of the
//! machine, where `report` merges and checks them.
//!
//! | folder | what |
//! |---|---|
//! | `unwind/` | **the unwinder's hooks**: start there |
//! | `entry.s`, `entry.rs` | ways into the kernel and out of it |
//! | `task/` | tasks, their turns, their programs and system calls |
//! | `memory/` | frames, page tables, demand paging, user memory |
//! | the rest | the hardware |
//!
//! The kernel runs on up to 8 CPUs and does not preempt its own code. What that makes
//! simpler than it is elsewhere is said where it does.
#![no_std]
#![no_main]

mod apic;
mod branch_unit;
mod conductor;
mod counter_unit;
mod cpu;
mod descriptors;
mod each_cpu;
mod entry;
mod exclusive;
mod frame;
mod grace;
mod measure;
mod memory;
mod options;
mod other_cpus;
mod painted;
mod serial;
mod several;
mod shadow_unit;
mod single_step;
mod task;
mod unwind;

use core::arch::global_asm;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use serial::println;

global_asm!(include_str!("boot.s"), options(att_syntax));
global_asm!(include_str!("entry.s"), options(att_syntax));
global_asm!(include_str!("mem.s"), options(att_syntax));

/// Called by boot.s.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(start_info: u64) -> ! {
    options::read(start_info);
    println!("kernel: long mode, {:?}", options::get());
    descriptors::prepare();
    descriptors::load(0);
    descriptors::paint_nmi_stacks();
    task::state::paint_stacks();
    apic::prepare();
    apic::enable();
    other_cpus::start(options::get().cpus as usize);
    memory::drop_identity_map();
    unwind::register();
    unwind::kernel_stack::open_table();
    if options::get().panic != 0 {
        unwind::panic_trace::rehearse();
    }
    conductor::start(if each_cpu::are_several() { several::conduct } else { conductor::conduct });
    task::schedule::start()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    cpu::disable_interrupts();
    if PANICS.fetch_add(1, Ordering::Relaxed) == 0 {
        println!("PANIC {info}");
        unwind::panic_trace::print();
    } else {
        // The first one is being told; or it is this CPU's, and cannot be.
        let start = cpu::clock();
        while cpu::clock().wrapping_sub(start) < 1 << 32 {
            core::hint::spin_loop();
        }
    }
    cpu::exit_machine(0x7f)
}
