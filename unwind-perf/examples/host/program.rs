//! User code: functions that keep a frame pointer and call each other at random.

use std::collections::VecDeque;

use unwind_core::{SliceMemory, Trace, VirtAddr, Walker};
use unwind_x86::{TrustedFramePointers, X86_64, X86_64Regs};

/// Functions have 64 bytes each.
const TEXT: u64 = 0x40_0000;
const FUNCTIONS: u64 = 16;
const STACK: u64 = 0x7fff_0000;
const STACK_BYTES: u64 = 4096;
/// More calls than the branch record holds.
const DEEPEST: usize = 40;
/// How many calls the branch record holds.
const RECORDED: usize = 32;

/// What an instruction does, as far as the machine around it sees.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Call { from: u64, to: u64 },
    Return,
    SystemCall(SystemCall),
}

#[derive(Clone, Copy)]
pub(crate) enum SystemCall {
    /// Some work of the kernel.
    Work,
    /// A part begins that is to be traced.
    BeginPart,
    /// It has ended, and had as many branches.
    EndPart { branches: u64 },
    /// The program forks and ends; if there is no room for a child it continues.
    HandOver,
}

/// A program in the middle of its work.
pub(crate) struct Program {
    random: Random,
    pc: u64,
    sp: u64,
    fp: u64,
    /// The stack in memory.
    stack: Vec<u8>,
    /// The return addresses on it, outermost first: what a walk has to find.
    returns: Vec<u64>,
    /// The sources of the last calls that have not returned: what a record of this program alone
    /// would have, outermost first.
    recorded: VecDeque<u64>,
    /// System calls so far.
    calls: u32,
    /// Branches since a part began.
    part: Option<u64>,
    is_traced: bool,
}

impl Program {
    /// A program that stands at the start of its first function.
    pub(crate) fn new(seed: u64, is_traced: bool) -> Self {
        let mut new = Self {
            random: Random(seed | 1),
            pc: TEXT,
            sp: STACK + STACK_BYTES,
            fp: 0,
            stack: vec![0; STACK_BYTES as usize],
            returns: Vec::new(),
            recorded: VecDeque::new(),
            calls: 0,
            part: None,
            is_traced,
        };
        // The outermost function has no caller.
        new.enter(0, TEXT);
        new
    }

    /// Executes an instruction.
    pub(crate) fn step(&mut self) -> Step {
        if self.random.below(16) == 0 {
            return Step::SystemCall(self.system_call());
        }
        self.part = self.part.map(|branches| branches + 1);
        let calls = self.random.below(15) < 8 && self.returns.len() < DEEPEST;
        if calls || self.returns.is_empty() { self.call() } else { self.ret() }
    }

    fn call(&mut self) -> Step {
        let from = (self.pc & !63) + 8 + 5 * self.random.below(10);
        let (to, ra) = (TEXT + 64 * self.random.below(FUNCTIONS), from + 5);
        self.enter(ra, to);
        self.returns.push(ra);
        self.recorded.push_back(from);
        if self.recorded.len() > RECORDED {
            self.recorded.pop_front();
        }
        Step::Call { from, to }
    }

    /// The call and the prologue of what it leads to.
    fn enter(&mut self, ra: u64, to: u64) {
        self.push(ra);
        self.push(self.fp);
        self.fp = self.sp;
        self.sp -= 8 * self.random.below(4);
        self.pc = to + 4;
    }

    fn ret(&mut self) -> Step {
        self.sp = self.fp;
        self.fp = self.pop();
        self.pc = self.pop();
        self.returns.pop();
        self.recorded.pop_back();
        Step::Return
    }

    fn push(&mut self, word: u64) {
        self.sp -= 8;
        let at = (self.sp - STACK) as usize;
        self.stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn pop(&mut self) -> u64 {
        let at = (self.sp - STACK) as usize;
        self.sp += 8;
        u64::from_le_bytes(*self.stack[at..].first_chunk().expect("inside the stack"))
    }

    fn system_call(&mut self) -> SystemCall {
        const ENDS_AFTER: u32 = 600;
        self.calls += 1;
        match self.calls {
            // A traced program runs to the end of it all.
            ENDS_AFTER if !self.is_traced => SystemCall::HandOver,
            _ if !self.is_traced => SystemCall::Work,
            _ => match self.part.take() {
                Some(branches) => SystemCall::EndPart { branches },
                None => {
                    self.part = Some(0);
                    SystemCall::BeginPart
                }
            },
        }
    }

    /// Walks the stack, from the registers with which the kernel was entered.
    pub(crate) fn walk(&self, trace: &mut Trace) {
        let regs = X86_64Regs::new(self.pc, self.sp, self.fp);
        let live = &self.stack[(self.sp - STACK) as usize..];
        let mut memory = SliceMemory::new(VirtAddr::new(self.sp), live);
        // The zero in the last slot of a known stack is an end; any other zero proves nothing.
        Walker::new(X86_64::FOUR_LEVEL, TrustedFramePointers).stack_end(STACK + STACK_BYTES).trace(
            regs,
            &mut memory,
            trace,
        );
    }

    /// Whether these are the frames, innermost first.
    pub(crate) fn has_frames(&self, frames: impl Iterator<Item = VirtAddr>) -> bool {
        let own = [self.pc].into_iter().chain(self.returns.iter().rev().copied());
        frames.map(VirtAddr::get).eq(own)
    }

    /// Whether these are the sources of the last calls, innermost first.
    pub(crate) fn has_calls(&self, sources: impl Iterator<Item = u64>) -> bool {
        sources.eq(self.recorded.iter().rev().copied())
    }
}

/// Random numbers, enough for this.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}
