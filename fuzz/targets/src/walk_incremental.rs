//! A walk that reuses the previous walk of its task has the frames and the end of
//! a walk from the beginning, whatever changed in between.

use core::convert::Infallible;
use unwind_core::{
    BaseReg, CfaRule, DwarfReg, FrameContext, IncrementalTrace, Memory, Origin, ReadError, RegRule,
    ReturnAddresses, Row, RowCache, RowSource, RowStore, Trace, TraceFrame, VirtAddr, Walker,
};
use unwind_x86::{FramePointers, SignalTrampolines, X86_64, X86_64Regs};

use crate::input::Input;

const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000_1000;
const WORDS: usize = 96;
const FRAMES: usize = 24;

/// `mov rax, 15; syscall`, at the start of the code.
const TRAMPOLINE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// An address of code or of the stack, or anything.
fn word(input: &mut Input<'_>) -> u64 {
    let offset = u64::from(input.u16());
    match offset >> 13 {
        0..4 => CODE + (offset & 0x3ff),
        4..6 => STACK + 8 * (offset & 0x7f),
        6 => STACK + (offset & 0x3ff),
        _ if offset & 1 == 0 => offset & 0xff,
        _ => input.u64(),
    }
}

/// The rows of 16 functions.
struct Functions {
    rows: Vec<Option<Row>>,
    generation: u64,
}

impl Functions {
    fn new(input: &mut Input<'_>, generation: u64) -> Self {
        Self { rows: (0..16).map(|_| Self::row(input)).collect(), generation }
    }

    fn row(input: &mut Input<'_>) -> Option<Row> {
        let (kind, size) = (input.u8(), input.u8());
        let offset = 8 * (1 + i32::from(size & 15)) + i32::from(size == 0xff);
        let cfa = match kind & 15 {
            0 => return None,
            1 => return Some(Row::outermost()),
            2 => CfaRule::AtRegister(BaseReg::Sp, offset - 8),
            3 => CfaRule::Register(BaseReg::Reg(DwarfReg(3)), offset),
            4..8 => CfaRule::fp(offset),
            _ => CfaRule::sp(offset),
        };
        let ra = if size >> 4 == 15 { RegRule::Offset(-16) } else { RegRule::Offset(-8) };
        let fp = match kind >> 4 & 7 {
            0..3 => RegRule::SameValue,
            3..5 => RegRule::Offset(-16),
            5 => RegRule::Offset(-8 * i32::from(size >> 4)),
            6 => RegRule::Undefined,
            _ => RegRule::ValOffset(-8),
        };
        let origin = if kind & 0x80 == 0 { Origin::Table } else { Origin::FramePointer };
        let row = Row::new(cfa, ra, fp).with_origin(origin);
        Some(if size >> 4 == 14 { row.with_signal() } else { row })
    }
}

impl RowSource<X86_64> for &Functions {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let addr = frame.lookup_addr().get();
        Ok(if addr < CODE + 16 { None } else { self.rows[(addr >> 6 & 15) as usize] })
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// Who may have replaced return addresses, in the stack that was.
#[derive(Clone, Copy)]
struct Tracer {
    replaces: Option<u8>,
    generation: Option<u64>,
}

impl ReturnAddresses for Tracer {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let is_replaced = self.replaces? == (ra.get() & 0x3f) as u8;
        is_replaced.then(|| VirtAddr::new(CODE + slot.map_or(0, |slot| slot.get() >> 3 & 0x3ff)))
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        self.replaces.is_none_or(|number| (call.get() & 0x3f) as u8 != number ^ 1)
    }

    fn generation(&self) -> Option<u64> {
        self.generation
    }
}

/// A stack whose words may be absent, and whose first words are in memory.
#[derive(Clone)]
struct Stack {
    words: Vec<[u8; 8]>,
    absent: Option<usize>,
    at_hand: Option<usize>,
}

impl Memory for Stack {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let at = |start: u64, bytes: &[u8]| {
            let at = usize::try_from(addr.get().checked_sub(start)?).ok()?;
            bytes.get(at..at.checked_add(buf.len())?).map(|bytes| (at, bytes.to_vec()))
        };
        let stack = at(STACK, self.words.as_flattened());
        let (at, bytes) = stack.or_else(|| at(CODE, &TRAMPOLINE)).ok_or(ReadError::Invalid)?;
        let word = self.absent.map(|word| 8 * word..8 * word + 8);
        if word.is_some_and(|word| at < word.end && word.start < at + buf.len())
            && addr.get() >= STACK
        {
            return Err(ReadError::NotResident);
        }
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        let present = self.absent.unwrap_or(WORDS).min(self.at_hand?);
        Some((VirtAddr::new(STACK), &self.words[..present.min(WORDS)]))
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut functions = Functions::new(&mut input, 0);
    let mut stack = Stack {
        words: (0..WORDS).map(|_| word(&mut input).to_le_bytes()).collect(),
        absent: None,
        at_hand: Some(WORDS),
    };
    let mut regs = X86_64Regs::new(CODE + 0x40, STACK, STACK + 16);
    let mut tracer = Tracer { replaces: None, generation: Some(0) };
    let (mut max_frames, mut stack_end) = (100, u64::MAX);
    let mut caches = [const { RowCache::<16>::new() }; 2];
    let mut lasts = [const { IncrementalTrace::<FRAMES>::new() }; 2];
    for _ in 0..64 {
        match input.u8() & 15 {
            0..5 => stack.words[input.below(WORDS)] = word(&mut input).to_le_bytes(),
            5 => {
                let count = input.below(WORDS);
                stack.words[..count].fill_with(|| word(&mut input).to_le_bytes());
            }
            6..10 => {
                let (pc, at) = (CODE + u64::from(input.u16() & 0x3ff), input.u8() % 64);
                regs = X86_64Regs::new(pc, STACK + 8 * u64::from(at), word(&mut input))
                    .with(DwarfReg(3), word(&mut input));
            }
            10 => regs = X86_64Regs::new(word(&mut input), word(&mut input), word(&mut input)),
            11 => stack.absent = input.bool().then(|| input.below(WORDS)),
            12 => stack.at_hand = input.bool().then(|| input.below(WORDS + 32)),
            13 => functions = Functions::new(&mut input, functions.generation + 1),
            14 => {
                tracer.replaces = input.bool().then(|| input.u8() & 0x3f);
                let generation = tracer.generation.map_or(0, |generation| generation + 1);
                tracer.generation = (input.u8() != 0).then_some(generation);
            }
            _ => {
                max_frames = u32::from(input.u8() % 40);
                stack_end = if input.bool() { word(&mut input) } else { u64::MAX };
            }
        }
        let [cache, other] = &mut caches;
        let [last, by_frame_pointers] = &mut lasts;
        let rows = RowSource::or(&functions, SignalTrampolines);
        let walker = Walker::new(X86_64::FOUR_LEVEL, rows).cache(cache).fallback(FramePointers);
        let mut walker =
            walker.return_addresses(tracer).max_frames(max_frames).stack_end(stack_end);
        same(&mut walker, regs, &mut stack, last);

        let rows = RowSource::or(&functions, FramePointers);
        let walker = Walker::new(X86_64::FOUR_LEVEL, rows).cache(other).return_addresses(tracer);
        let mut walker = walker.max_frames(max_frames).stack_end(stack_end);
        same(&mut walker, regs, &mut stack, by_frame_pointers);
        if input.is_empty() {
            break;
        }
    }
}

/// Compares the walk that continues from `last` with one from the beginning.
fn same<S, F, C>(
    walker: &mut Walker<X86_64, S, F, Tracer, C>,
    regs: X86_64Regs,
    stack: &mut Stack,
    last: &mut IncrementalTrace<FRAMES>,
) where
    S: RowSource<X86_64, Error = Infallible>,
    F: RowSource<X86_64, Error = Infallible>,
    C: RowStore,
{
    let mut whole = Trace::<[_; FRAMES]>::new();
    walker.trace(regs, stack, &mut whole);
    walker.trace_incremental(regs, stack, last);
    let pair = |frame: TraceFrame| (frame.pc, frame.provenance);
    assert!(last.frames().map(pair).eq(whole.frames().map(pair)), "{last:?}\n{whole:?}");
    assert_eq!(last.end(), whole.end());
    assert!(last.reused() < last.len().max(1), "all but the first frame at most");
}
