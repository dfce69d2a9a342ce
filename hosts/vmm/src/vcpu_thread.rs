//! The thread of a vCPU: what a monitor has to write.
//!
//! A signal of a timer interrupts the thread, in `KVM_RUN` mostly, and with it the guest. Its handler takes the sample: it
//! walks the host's part of the stack, asks for the guest's, and writes a record with both the one and the other's
//! cookie. On the way into the guest the thread delivers.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Instant;

use unwind_core::deferred::UserReturn;
use unwind_guest::{GuestRows, GuestStack, VcpuRegisters};

use crate::delivery::{Standing, hand_out};
use crate::monitor::{Task, UNWIND, count, set_current};
use crate::ram::ResidentMemory;
use crate::raw;
use crate::shared::Shared;
use crate::vcpu::Vcpu;

/// The thread of a vCPU.
pub(crate) struct VcpuThread<'m, V> {
    pub(crate) vcpu: V,
    pub(crate) task: &'static Task,
    pub(crate) shared: &'m Shared,
    pub(crate) rows: GuestRows,
    pub(crate) stack: GuestStack,
    /// Whom walks are left to that would wait.
    pub(crate) patient: mpsc::Sender<Standing>,
}

impl<V: Vcpu> VcpuThread<'_, V> {
    /// Runs the guest, and samples it `hertz` times a second.
    pub(crate) fn run(&mut self, hertz: u32) {
        set_current(Some(self.task));
        let timer = raw::Timer::start(hertz);
        while !self.shared.is_done() {
            self.way_in();
            self.vcpu.run();
        }
        drop(timer);
        set_current(None);
        UNWIND.close(self.task);
        self.deliver();
    }

    /// The way into the guest: the last thing before it runs.
    fn way_in(&mut self) {
        loop {
            if self.task.immediate_exit.swap(0, Ordering::Relaxed) != 0 {
                self.deliver();
            }
            if UNWIND.user_return(self.task) == UserReturn::Ready {
                break;
            }
        }
    }

    /// Walks the guest's stack, or has it walked where that would wait, and hands it out.
    fn deliver(&mut self) {
        let start = Instant::now();
        let registers = self.vcpu.registers();
        self.shared.put_pages_away(self.task.number);
        self.task.is_walking.store(true, Ordering::Relaxed);
        let memory = ResidentMemory(&self.shared.ram);
        let tables = &self.shared.tables;
        tables.walker(&mut self.rows).walk_by_key(&registers, memory, tables, &mut self.stack);
        self.task.is_walking.store(false, Ordering::Relaxed);
        let counts = &self.task.counts;
        if self.stack.is_retryable() {
            count(&counts.left, 1);
            self.leave(registers);
            count(&counts.long_pause, start.elapsed().as_nanos() as u64);
        } else {
            hand_out(self.task, &self.task.ring, &registers, &self.stack, self.shared);
            count(&counts.pause, start.elapsed().as_nanos() as u64);
        }
    }

    /// The vCPU stands until another thread has walked and handed out. This one could do the monitor's other work.
    fn leave(&self, registers: VcpuRegisters) {
        let (done, resume) = mpsc::channel();
        let standing = Standing { task: self.task, registers, done };
        self.patient.send(standing).expect("that thread ends last");
        resume.recv().expect("each is answered");
    }
}
