//! Frames of code without a table, proved by its instructions.
//!
//! Compilers that make code while a program runs keep frame pointers and write no tables. That a
//! return address in such code belongs to the frame pointer is their promise; where a function was
//! interrupted its frame may not be there yet, or no longer. Two ways through its instructions tell:
//!
//! * from its start: it sets its frame up, and nothing up to the pc takes it down. Where the
//!   start is not told, it is the nearest place before the pc that sets a frame up, if the function
//!   that begins there reaches the pc: no code before that ends it;
//! * from the pc on, to a `ret`: what the way does to the stack pointer and to the frame pointer
//!   until then says where the return address is.

mod entry;
mod from_start;
mod reader;
mod to_return;

use core::convert::Infallible;
use core::ops::Range;

use unwind_core::{
    Arch, FrameContext, FramePc, Memory, Origin, Row, RowSource, VirtAddr, WordSize,
};

use self::entry::{Entry, entry_before};
use self::from_start::{Extent, comes_to, row_from_start};
use self::to_return::{Way, way_to_return};
use crate::ia32::Ia32;
use crate::x86_64::X86_64;

/// Where the functions of code without a table begin and end, as far as somebody tells: a JIT
/// compiler's map or its host.
pub trait FunctionBounds {
    /// Where the function with the code at `addr` begins and ends.
    fn find(&self, addr: VirtAddr) -> Option<Range<VirtAddr>>;

    /// Whether the functions that [`find`](Self::find) tells of are called at their start, and entered nowhere else:
    /// then instructions from there to the pc prove a frame that is not set up. Of code that a jump or a
    /// signal enters it would be wrong.
    fn are_called(&self) -> bool {
        false
    }
}

/// No bounds are known.
impl FunctionBounds for () {
    fn find(&self, _: VirtAddr) -> Option<Range<VirtAddr>> {
        None
    }
}

impl<B: FunctionBounds + ?Sized> FunctionBounds for &B {
    fn find(&self, addr: VirtAddr) -> Option<Range<VirtAddr>> {
        (**self).find(addr)
    }

    fn are_called(&self) -> bool {
        (**self).are_called()
    }
}

/// A source of rows for code without a table that keeps frame pointers, as JIT compilers make it:
/// each row is proved by the instructions around it, and is no [guess](Row::is_guess).
///
/// It has a row for an interrupted frame and for a return address. It has none where the
/// instructions prove nothing: code that ends with jumps by a register, that loops for ever, or
/// that is not executable code at all. It is asked after all tables. A row takes at most some
/// thousand instructions' time and as many bytes of reads, and no memory but the stack.
///
/// The proof holds for code as compilers make it: each address has one state of the frame, a call
/// comes back with the frame pointer unchanged, and nobody jumps into the middle of a function.
///
/// # Example
///
/// ```
/// use unwind_core::{SliceMemory, VirtAddr, Walker};
/// use unwind_x86::{FramePointers, ProvenFrames, X86_64, X86_64Regs};
///
/// // push rbp; mov rbp, rsp; nop; pop rbp; ret. Its stack is in the next page.
/// let mut bytes = vec![0x55, 0x48, 0x89, 0xe5, 0x90, 0x5d, 0xc3];
/// bytes.resize(0x1000, 0xcc);
/// bytes.extend([0x8f10_u64, 0x40_1234].iter().flat_map(|word| word.to_le_bytes()));
/// let mut memory = SliceMemory::new(VirtAddr::new(0x7000), &bytes);
///
/// // Interrupted at the nop.
/// let regs = X86_64Regs::new(0x7004, 0x8000, 0x8000);
/// let mut walker = Walker::new(X86_64::FOUR_LEVEL, ProvenFrames::new(()));
/// let mut frames = walker.frames(regs, &mut memory);
/// assert_eq!(frames.next().unwrap().cfa, Some(0x8010));
/// let caller = frames.next().unwrap();
/// assert_eq!(caller.pc.addr(), VirtAddr::new(0x40_1234));
/// assert!(!caller.provenance.is_after_gap());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProvenFrames<B = ()> {
    bounds: B,
}

/// What the instructions at an address prove of a frame.
///
/// It holds as long as the code is the same, so a host may keep it by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameProof(Way);

impl FrameProof {
    /// The row of a frame with this stack pointer and frame pointer.
    #[must_use]
    pub fn row(&self, sp: u64, fp: Option<u64>) -> Option<Row> {
        let row = match self.0 {
            Way::Row(row) => Some(row),
            // Calls may have moved the stack pointer; then this is chance.
            Way::FramePointerAt(offset, row) => {
                (fp? == sp.wrapping_add_signed(offset.into())).then_some(row)
            }
        };
        row.map(|row| row.with_origin(Origin::Instructions))
    }
}

impl ProvenFrames {
    /// Where a function begins whose bounds nobody tells and which comes to `pc`, with words of this size: the nearest
    /// place before that pushes the frame pointer and sets it. `None` if the instructions from there on do not show that they
    /// lead to `pc`.
    ///
    /// # Example
    ///
    /// ```
    /// use unwind_core::{SliceMemory, VirtAddr, WordSize};
    /// use unwind_x86::ProvenFrames;
    ///
    /// // push rbp; mov rbp, rsp; nop; pop rbp; ret
    /// let mut code = vec![0x55, 0x48, 0x89, 0xe5, 0x90, 0x5d, 0xc3];
    /// code.resize(0x1000, 0xcc);
    /// let mut memory = SliceMemory::new(VirtAddr::new(0x7000), &code);
    /// let start = ProvenFrames::start(WordSize::Eight, VirtAddr::new(0x7006), &mut memory);
    /// assert_eq!(start, Some(VirtAddr::new(0x7000)));
    /// ```
    pub fn start<M: Memory>(word: WordSize, pc: VirtAddr, mem: &mut M) -> Option<VirtAddr> {
        match entry_before(word, pc, mem) {
            Entry::At(start) => comes_to(word, start, pc, mem).then_some(start),
            Entry::AfterPush | Entry::Nowhere => None,
        }
    }
}

impl<B: FunctionBounds> ProvenFrames<B> {
    /// Rows of functions whose bounds are told by `bounds`.
    pub const fn new(bounds: B) -> Self {
        Self { bounds }
    }

    /// What the code with words of this size proves of a frame at `pc`, as `mem` has it.
    pub fn proof<M: Memory>(&self, word: WordSize, pc: FramePc, mem: &mut M) -> Option<FrameProof> {
        let addr = pc.addr();
        let bounds = self.bounds.find(pc.lookup_addr());
        let extent = match &bounds {
            Some(bounds) => Some(Extent::Told(bounds.clone(), self.bounds.are_called())),
            None => match entry_before(word, addr, mem) {
                Entry::At(start) => Some(Extent::Found(start)),
                Entry::Nowhere => None,
                // What is in the place of the return address may be none.
                Entry::AfterPush => return None,
            },
        };
        let by_start = extent.and_then(|extent| row_from_start(word, extent, addr, mem));
        by_start.map(Way::Row).or_else(|| way_to_return(word, bounds, addr, mem)).map(FrameProof)
    }

    #[inline(never)]
    fn proven_row<R, M: Memory>(
        &self,
        word: WordSize,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Option<Row> {
        // Others may make other code there, and who keeps rows is not told.
        frame.may_change();
        self.proof(word, frame.pc(), mem)?.row(frame.sp(), frame.fp())
    }
}

impl<B: FunctionBounds> RowSource<X86_64> for ProvenFrames<B> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <X86_64 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(self.proven_row(WordSize::Eight, frame, mem))
    }
}

impl<B: FunctionBounds> RowSource<Ia32> for ProvenFrames<B> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, <Ia32 as Arch>::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(self.proven_row(WordSize::Four, frame, mem))
    }
}

#[cfg(test)]
mod tests;
