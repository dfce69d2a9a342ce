//! A vCPU where there is no `/dev/kvm`: it executes nothing, and has at each exit the registers and the stacks that
//! the guest's code could have.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use unwind_guest::{Segment, VcpuRegisters};
use vm_memory::{Bytes, GuestAddress};

use crate::image::GuestImage;
use crate::known::{KERNEL_DEPTH, USER_DEPTH};
use crate::ram::{GuestRam, KERNEL_STACK, USER_STACK};
use crate::vcpu::Vcpu;

/// A vCPU that jumps from one state of the guest to another.
#[derive(Debug)]
pub struct MadeUpVcpu {
    image: Arc<GuestImage>,
    ram: Arc<GuestRam>,
    number: u64,
    immediate_exit: &'static AtomicU8,
    registers: VcpuRegisters,
    random: u64,
}

/// The numbers of registers in `VcpuRegisters::general`.
const RDI: usize = 5;
const RBP: usize = 6;
const RSP: usize = 7;
const R13: usize = 13;
const R14: usize = 14;
const R15: usize = 15;

/// Bytes of the frames of `zero` and `one`, below the return address: as in `guest.S`.
const USER_FRAMES: [u64; 2] = [568, 704];
const KERNEL_FRAMES: [u64; 2] = [216, 336];
const MAIN_FRAME: u64 = 24;

impl MadeUpVcpu {
    /// The vCPU of this number.
    pub fn new(image: Arc<GuestImage>, ram: Arc<GuestRam>, number: u64) -> Self {
        let segment = |selector, dpl, l| Segment { base: 0, selector, dpl, l, db: !l };
        let mut registers = VcpuRegisters {
            cs: segment(0x33, 3, true),
            ss: segment(0x2b, 3, false),
            cr0: 0x8005_0033,
            cr3: GuestRam::root(number),
            cr4: 1 << 5,
            efer: 0x501,
            ..VcpuRegisters::default()
        };
        registers.rip = image.addr("user_start");
        registers.general[RSP] = USER_STACK - 8;
        let immediate_exit = Box::leak(Box::new(AtomicU8::new(0)));
        Self { image, ram, number, immediate_exit, registers, random: number + 1 }
    }

    /// Goes to where the chains of calls are so deep; the kernel's is none if user code runs. The chains have one
    /// function more than their depth, the innermost one.
    pub fn go_to(&mut self, number: u64, user_depth: u64, kernel_depth: Option<u64>) {
        let mut general = [0x1111; 16];
        general[RBP] = 0x0123_4567_89ab_cdef;
        (general[RDI], general[R13]) = (number << 16, number << 16);
        let (rip, rsp) = self.chain("user", "user_start", USER_STACK - 8, (number, user_depth));
        (general[RSP], general[R14], general[R15]) = (rsp, user_depth, number);
        (self.registers.cs.selector, self.registers.cs.dpl) = (0x33, 3);
        (self.registers.ss.selector, self.registers.ss.dpl) = (0x2b, 3);
        self.registers.rip = rip;
        if let Some(depth) = kernel_depth {
            self.save(&general, self.image.addr("user_leaf_ret") - 3, rsp);
            let number = general[RDI] >> 20;
            let entry = KERNEL_STACK - 168;
            self.write(entry - 8, self.image.addr("kernel_entry_after_main"));
            let main = entry - 8 - MAIN_FRAME;
            let (rip, rsp) = self.chain("kernel", "kernel_main", main, (number, depth));
            (general[RSP], general[R14], general[R15]) = (rsp, depth, number);
            (self.registers.cs.selector, self.registers.cs.dpl) = (0x10, 0);
            (self.registers.ss.selector, self.registers.ss.dpl) = (0x18, 0);
            self.registers.rip = rip;
        }
        self.registers.general = general;
    }

    /// Lays out a chain of calls from `root`, whose stack pointer is `sp`; returns the pc and the stack pointer of its
    /// innermost function.
    fn chain(
        &self,
        side: &str,
        root: &str,
        mut sp: u64,
        (number, depth): (u64, u64),
    ) -> (u64, u64) {
        let (frames, most) = match side {
            "user" => (USER_FRAMES, USER_DEPTH),
            _ => (KERNEL_FRAMES, KERNEL_DEPTH),
        };
        let mut caller = root.to_owned();
        for level in 0..depth {
            let bit = (number >> level & 1) as usize;
            let (callee, frame) = match level {
                _ if level == most => ("leaf", 0),
                _ => (["zero", "one"][bit], frames[bit]),
            };
            sp -= 8;
            self.write(sp, self.image.addr(&format!("{caller}_after_{callee}")));
            sp -= frame;
            caller = format!("{side}_{callee}");
        }
        // A function's last instructions have another frame; in the middle there is the one after its prologue.
        let pc = match depth {
            0 => format!("{root}_after_zero"),
            _ if depth > most => return (self.image.addr(&caller) + 3, sp),
            _ => format!("{caller}_after_zero"),
        };
        (self.image.addr(&pc), sp)
    }

    /// Saves the registers as the kernel's entry does.
    fn save(&self, general: &[u64; 16], rip: u64, rsp: u64) {
        const ORDER: [usize; 15] = [15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5];
        let at = KERNEL_STACK - 168;
        for (place, register) in (at..).step_by(8).zip(ORDER) {
            self.write(place, general[register]);
        }
        let by_cpu = [0, rip, 0x33, 2, rsp, 0x2b];
        for (place, word) in (at + 120..).step_by(8).zip(by_cpu) {
            self.write(place, word);
        }
    }

    fn write(&self, at: u64, word: u64) {
        let physical = GuestRam::physical(self.number, at);
        self.ram.memory().write_obj(word, GuestAddress(physical)).expect("a stack's page");
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }
}

impl Vcpu for MadeUpVcpu {
    fn run(&mut self) {
        while self.immediate_exit.load(Ordering::Relaxed) == 0 {
            hint::spin_loop();
        }
        let number = self.random(1 << 31);
        match self.random(2) {
            0 => {
                let depth = self.random(USER_DEPTH + 2);
                self.go_to(number, depth, None);
            }
            _ => {
                let depth = self.random(KERNEL_DEPTH + 2);
                self.go_to(number, USER_DEPTH + 1, Some(depth));
            }
        }
    }

    fn registers(&self) -> VcpuRegisters {
        self.registers
    }

    fn immediate_exit(&self) -> &'static AtomicU8 {
        self.immediate_exit
    }
}
