//! Rows from the tables of loaded objects, where they are.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use unwind_cfi::{
    CfiError, CfiScratch, CfiSection, CfiTable, ExceptionData, RemoteCfi, RemoteCfiError,
};
use unwind_core::{FrameContext, Memory, RegisterRules, Row, RowSource};
use unwind_x86::{FramePointers, InstructionAnalysis, TrustedFramePointers};

use super::loads;
use super::machine::{CFI_ABI, Machine, Registers};
use super::object::Object;
use super::program_code::{self, Told};
use super::program_index;
use super::registers::StartPc;
use super::sframe_rows::sframe_row;

/// The lookup address of the C library's signal trampoline, the byte before it, once a
/// handler's return address has led a walk there. Its row
/// has rules for all registers, and is none that a cache keeps.
static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

/// Whether a guess has led to a frame of this walk.
///
/// Until then each frame's code runs on this thread's stack, so its object stays loaded.
/// After a guess an address may be anything, also that of an object which another thread
/// unloads at this moment, unless it is one of those that stay.
#[derive(Debug, Default)]
pub(crate) struct Guessed(Cell<bool>);

impl Guessed {
    /// For a walk that continues.
    pub(crate) const fn new(is_set: bool) -> Self {
        Self(Cell::new(is_set))
    }

    pub(crate) const fn is_set(&self) -> bool {
        self.0.get()
    }
}

/// Rows from `.sframe` and `.eh_frame`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectRows<'g> {
    guessed: &'g Guessed,
}

impl<'g> ObjectRows<'g> {
    /// The rows for a walk from there, and for no other.
    pub(crate) const fn new(_: StartPc, guessed: &'g Guessed) -> Self {
        Self { guessed }
    }
}

impl RowSource<Machine> for ObjectRows<'_> {
    type Error = RemoteCfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Registers>,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteCfiError> {
        let addr = frame.lookup_addr().get();
        if addr == TRAMPOLINE.load(Ordering::Relaxed) && addr != 0 {
            return Ok(Some(Row::signal_context()));
        }
        // After a guess less is asked: another walk may find more at the same address.
        let is_guessed = self.guessed.is_set();
        if let Some(told) = program_code::find(addr, is_guessed) {
            let row = program_row(&told, frame, self.guessed, mem);
            if is_guessed {
                frame.may_change();
            }
            return row;
        }
        let Some(object) = Object::find(addr) else { return Ok(None) };
        if is_guessed && !object.is_permanent() {
            frame.may_change();
            return row_by_reads(object, frame, mem);
        }
        // SAFETY: code of it runs on this thread's stack, see `Guessed`.
        if let Some(part) = unsafe { object.sframe() }
            && let Some(row) = sframe_row(part.bytes, part.addr, addr)
        {
            return Ok(Some(row));
        }
        let row = call_frame_row(object, frame, mem)?;
        // A signal can interrupt the trampoline's own instructions, too.
        let is_signal = row.is_some_and(|row| row.is_signal()) && !frame.pc().is_exact();
        if is_signal && object.is_c_library() {
            TRAMPOLINE.store(addr, Ordering::Relaxed);
        }
        Ok(row)
    }

    #[inline(never)]
    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Registers>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, RemoteCfiError> {
        let addr = frame.lookup_addr().get();
        match &call_frames_of(self.guessed, addr) {
            Ok(Some(table)) => Ok(table.find_register_rules(addr)?),
            Ok(None) => Ok(None),
            Err(error) => Err((*error).into()),
        }
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Neither gets near to 2^32.
        u64::try_from(loads::count().unwrap_or(0)).unwrap_or(0)
            ^ program_code::generation().rotate_left(32)
    }
}

/// The row of code that the program has made.
#[cold]
#[inline(never)]
fn program_row<M: Memory>(
    told: &Told,
    frame: &FrameContext<'_, Registers>,
    guessed: &Guessed,
    mem: &mut M,
) -> Result<Option<Row>, RemoteCfiError> {
    if let Told::Row(row) = told {
        return Ok((*row)?);
    }
    if matches!(told, Told::CallerFramePointer) && frame.pc().is_exact() {
        // As of code that nothing tells of.
        return Ok(None);
    }
    // Where it was interrupted, the function may have none yet, or no longer.
    let here = RowSource::<Machine>::row(&mut Instructions(guessed), frame, mem)?;
    if here.is_some() {
        return Ok(here);
    }
    Ok(RowSource::<Machine>::row(&mut TrustedFramePointers, frame, mem)?)
}

/// The row of the `.eh_frame`.
#[inline(never)]
fn call_frame_row<M: Memory>(
    object: Object,
    frame: &FrameContext<'_, Registers>,
    mem: &mut M,
) -> Result<Option<Row>, CfiError> {
    // Looked at where it was returned, so that it is on the stack once.
    match &call_frames(object) {
        Ok(table) => table.as_ref().map_or(Ok(None), |table| table.find_row_in(frame, mem)),
        Err(error) => Err(*error),
    }
}

/// The code of the function that has an address; `None` if no table of its object tells.
///
/// `.eh_frame` alone is asked.
pub(crate) fn function(_: StartPc, guessed: &Guessed, addr: u64) -> Option<Range<u64>> {
    match &call_frames_of(guessed, addr) {
        Ok(Some(table)) => table.find_code(addr).ok()?,
        _ => None,
    }
}

/// What unwinding of exceptions needs of that function.
pub(crate) fn exception_data(_: StartPc, guessed: &Guessed, addr: u64) -> Option<ExceptionData> {
    match &call_frames_of(guessed, addr) {
        Ok(Some(table)) => table.find_exception_data(addr).ok()?,
        _ => None,
    }
}

/// The `.eh_frame` of the object with an address, unless a guess has led there.
#[inline(never)]
fn call_frames_of<'o>(guessed: &Guessed, addr: u64) -> Result<Option<CfiTable<'o>>, CfiError> {
    let object = Object::find(addr).filter(|_| !guessed.is_set());
    object.map_or(Ok(None), call_frames)
}

/// The `.eh_frame`, with its search table.
#[inline(never)]
fn call_frames<'o>(object: Object) -> Result<Option<CfiTable<'o>>, CfiError> {
    // SAFETY: code of it runs on this thread's stack, see `Guessed`.
    let header = unsafe { object.segment_from(object.eh_frame_hdr) };
    let Some(header) = header else { return Ok(program_index::table(object)) };
    // A version, encodings, and the distance to `.eh_frame`.
    let Some([1, _, _, _, a, b, c, d]) = header.bytes.first_chunk() else { return Ok(None) };
    let distance = i32::from_le_bytes([*a, *b, *c, *d]);
    let addr = header.addr.wrapping_add(4).wrapping_add_signed(distance.into());
    // SAFETY: likewise.
    let Some(frames) = (unsafe { object.segment_from(addr) }) else { return Ok(None) };
    let section = CfiSection::eh_frame(frames.bytes, frames.addr);
    CfiTable::with_search_table(section, CFI_ABI, header.bytes, header.addr)
}

/// The row of the `.eh_frame`, read by calls that cannot fault.
#[cold]
#[inline(never)]
fn row_by_reads<M: Memory>(
    object: Object,
    frame: &FrameContext<'_, Registers>,
    mem: &mut M,
) -> Result<Option<Row>, RemoteCfiError> {
    if object.eh_frame_hdr == 0 {
        return Ok(None);
    }
    let table = RemoteCfi::open(mem, CFI_ABI, object.eh_frame_hdr)?;
    let mut scratch = CfiScratch::new();
    table.map_or(Ok(None), |table| table.find_row_in(frame, mem, &mut scratch))
}

/// Frame pointers where no table tells of the code. They are guesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guesses<'g>(pub(crate) &'g Guessed);

impl RowSource<Machine> for Guesses<'_> {
    type Error = RemoteCfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Registers>,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteCfiError> {
        self.0.0.set(true);
        Ok(RowSource::<Machine>::row(&mut FramePointers, frame, mem)?)
    }
}

/// Rows from the instructions at the innermost pc. Those that these do not prove are guesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions<'g>(pub(crate) &'g Guessed);

impl RowSource<Machine> for Instructions<'_> {
    type Error = RemoteCfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Registers>,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteCfiError> {
        let row = RowSource::<Machine>::row(&mut InstructionAnalysis, frame, mem)?;
        if row.is_some_and(|row| row.is_guess()) {
            self.0.0.set(true);
        }
        Ok(row)
    }
}
