//! Rows of an object whose call frame information lies in the target's memory, or in a
//! file that is read in parts.

use core::{convert::Infallible, fmt};

use unwind_core::{
    DwarfReg, FrameContext, Memory, ReadError, RegisterRules, Registers, Row, RowKey, TableError,
    VirtAddr,
};

use crate::{
    abi::{CfiAbi, RegisterNumbers},
    entry::{Body, Entries},
    error::CfiError,
    evaluation::{Evaluation, MAX_INSTRUCTIONS, MAX_REMEMBERED, PcRules},
    frame_rules::FrameRules,
    rules::Rules,
    rules_in_frame::{InFrame, RulesInFrame},
    search_table::{ENTRY_LEN, HEADER_LEN, SearchEntry, SearchHeader},
    section::CfiSection,
    states::States,
    table::MAX_EMPTY,
};

/// Why there is no row of an object whose call frame information is read where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteCfiError {
    /// What was read is malformed, or says what no row can.
    Cfi(CfiError),
    /// The information could not be read.
    Unreadable {
        /// What was to be read.
        addr: VirtAddr,
        /// Why it could not be.
        error: ReadError,
    },
}

impl From<CfiError> for RemoteCfiError {
    fn from(error: CfiError) -> Self {
        Self::Cfi(error)
    }
}

impl From<Infallible> for RemoteCfiError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for RemoteCfiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cfi(error) => error.fmt(f),
            Self::Unreadable { addr, error } => {
                write!(f, "call frame information at {addr}: {error}")
            }
        }
    }
}

impl core::error::Error for RemoteCfiError {}

/// Codes are those of [`CfiError`], and 256 for [`Unreadable`](RemoteCfiError::Unreadable).
impl TableError for RemoteCfiError {
    fn is_not_resident(&self) -> bool {
        matches!(self, Self::Unreadable { error: ReadError::NotResident, .. })
    }

    fn code(&self) -> u16 {
        match self {
            Self::Cfi(error) => error.code(),
            Self::Unreadable { .. } => 256,
        }
    }
}

/// The bytes of a CIE that are kept, its instructions among them. Those of compilers have
/// 20 to 40.
const CIE_LEN: usize = 192;

/// The bytes of an FDE, and of the search table, that are read at a time.
const WINDOW_LEN: usize = 320;

/// What one lookup reads, in memory that the host places where it is not short. Nothing in
/// it is used after the lookup.
#[derive(Clone, Debug)]
pub struct CfiScratch {
    cie: [u8; CIE_LEN],
    window: [u8; WINDOW_LEN],
    remembered: [Rules; MAX_REMEMBERED],
}

impl Default for CfiScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl CfiScratch {
    /// Memory for one lookup after the other.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cie: [0; CIE_LEN],
            window: [0; WINDOW_LEN],
            remembered: [Rules::UNSET; MAX_REMEMBERED],
        }
    }
}

/// The call frame information of one object, found by its `.eh_frame_hdr` and read where it
/// is: by any [`Memory`], whose pages may be absent, or change at any time.
///
/// A lookup reads each byte that it uses once, and checks what it read: whatever becomes of
/// the information meanwhile, there is an error or an answer in bounded time.
///
/// # Bounds
///
/// A lookup among `n` FDEs does log2(`n`) + 1 reads of the search table, two of the FDE and two
/// of its CIE, four for each of at most 64 FDEs about no code before it, and one for each 160
/// bytes or more of the FDE's instructions up to the place that is asked for, of which there
/// are at most [`MAX_INSTRUCTIONS`]. None is longer than 320 bytes. A CIE of more than 192
/// bytes ends with [`CfiError::CieTooLong`], an expression of more than 320 with
/// [`CfiError::TooManyInstructions`]: compilers write none.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCfi {
    abi: CfiAbi,
    header_addr: u64,
    header: SearchHeader,
    text: Option<u64>,
    data: Option<u64>,
    bias: u64,
    id: Option<u64>,
}

/// What an FDE says of a pc.
enum Found {
    Rules(PcRules),
    /// It is about no code, but starts there.
    Empty {
        /// The address of the entry after it.
        next: u64,
    },
    /// It is about other code.
    Elsewhere,
}

impl RemoteCfi {
    /// Reads the header of the `.eh_frame_hdr` at `addr`; `None` if it has no table that can
    /// be searched.
    ///
    /// # Errors
    ///
    /// [`RemoteCfiError`] if it cannot be read, or is malformed.
    pub fn open<M: Memory>(
        mem: &mut M,
        abi: CfiAbi,
        addr: u64,
    ) -> Result<Option<Self>, RemoteCfiError> {
        let mut bytes = [0; HEADER_LEN];
        read(&mut reads(mem), addr, &mut bytes)?;
        let header = SearchHeader::read(bytes, addr)?;
        Ok(header.map(|header| {
            let header_addr = addr;
            Self { abi, header_addr, header, text: None, data: None, bias: 0, id: None }
        }))
    }

    /// Says where the code is that text-relative addresses count from.
    #[must_use]
    pub const fn text(mut self, addr: u64) -> Self {
        self.text = Some(addr);
        self
    }

    /// Says where the data is (the GOT, on x86) that data-relative addresses count from.
    #[must_use]
    pub const fn data(mut self, addr: u64) -> Self {
        self.data = Some(addr);
        self
    }

    /// The same object, loaded this much above the addresses that its information counts
    /// from, in bytes, wrapping. Without this they are the same, as where the sections are read at the addresses at which
    /// they were loaded: their pointers are relative to their own places.
    #[must_use]
    pub const fn bias(mut self, bias: u64) -> Self {
        self.bias = bias;
        self
    }

    /// The same object, which this number names in all address spaces: see
    /// [`RowKey::table`].
    #[must_use]
    pub const fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// What names the row for an address of the code; `None` without a
    /// [number](Self::with_id).
    pub(crate) fn row_key(&self, addr: u64) -> Option<RowKey> {
        Some(RowKey { table: self.id?, offset: addr.wrapping_sub(self.bias) })
    }

    /// The code that the information describes.
    #[must_use]
    pub const fn abi(&self) -> CfiAbi {
        self.abi
    }

    /// The row for an address of the code; `None` if no FDE is about it.
    ///
    /// # Errors
    ///
    /// [`RemoteCfiError`] if the information for the address cannot be read, is malformed,
    /// or says what no row can.
    pub fn find_row<M: Memory>(
        &self,
        mem: &mut M,
        addr: u64,
        scratch: &mut CfiScratch,
    ) -> Result<Option<Row>, RemoteCfiError> {
        match &self.find_rules(mem, addr, scratch, None) {
            Ok(Some(at_pc)) => Ok(Some(self.row_of(at_pc)?)),
            Ok(None) => Ok(None),
            Err(error) => Err(*error),
        }
    }

    /// The row that rules come to.
    fn row_of(&self, at_pc: &PcRules) -> Result<Row, CfiError> {
        at_pc.row(&RegisterNumbers::new(self.abi), self.header.eh_frame)
    }

    /// The row of a frame, by [`find_row`](Self::find_row) for its
    /// [lookup address](FrameContext::lookup_addr), or where it takes the frame's registers and
    /// memory, by what expressions come to in this frame: see
    /// [`CfiTable::find_row_in`](crate::CfiTable::find_row_in). Each takes one read more.
    ///
    /// # Errors
    ///
    /// As `find_row`, and of expressions.
    #[inline]
    pub fn find_row_in<R: Registers, M: Memory>(
        &self,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
        scratch: &mut CfiScratch,
    ) -> Result<Option<Row>, RemoteCfiError> {
        match &self.find_rules(mem, frame.lookup_addr().get(), scratch, None) {
            Ok(Some(at_pc)) => {
                let row = self.row_of(at_pc);
                if RulesInFrame::say_more(at_pc, &row) {
                    return self.row_in(at_pc, frame, mem).map(Some);
                }
                Ok(Some(row?))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(*error),
        }
    }

    /// The row of the frame, by rules of which some are expressions.
    #[cold]
    #[inline(never)]
    fn row_in<R: Registers, M: Memory>(
        &self,
        at_pc: &PcRules,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Row, RemoteCfiError> {
        let mut unreadable = Ok(());
        let copy = |mem: &mut M, at: u64, bytes: &mut [u8]| {
            unreadable = read(&mut reads(mem), at, bytes);
            unreadable.is_ok()
        };
        let section = self.header.eh_frame;
        let rules = RulesInFrame { at_pc, abi: self.abi, section, bias: self.bias };
        let row = rules.row(frame.sp(), &mut InFrame { frame, mem, copy });
        // What cannot be read now was read a moment ago.
        unreadable?;
        Ok(row?)
    }

    /// The rules for an address of the code, where some are expressions that no row can say:
    /// they have a row in a frame. `None` if there are none such, or no FDE is about the address.
    ///
    /// It takes as long as [`find_row`](Self::find_row), so who looks for a row asks that first,
    /// and this where [it may say more](FrameRules::may_say_more), and up to three reads more.
    ///
    /// # Errors
    ///
    /// As `find_row`, of what cannot be read or is malformed.
    pub fn find_frame_rules<M: Memory>(
        &self,
        mem: &mut M,
        addr: u64,
        scratch: &mut CfiScratch,
    ) -> Result<Option<FrameRules>, RemoteCfiError> {
        let Some(at_pc) = self.find_rules(mem, addr, scratch, None)? else { return Ok(None) };
        let mut reads = reads(mem);
        let copy = |at: u64, bytes: &mut [u8]| read(&mut reads, at, bytes);
        let found = FrameRules::new(&at_pc, self.abi, self.header.eh_frame, copy)?;
        Ok(found.map(|found| found.loaded(self.bias)))
    }

    /// The rules of the [other registers](RegisterRules) for an address of the code; `None`
    /// if no FDE is about it. A register that no rule can tell is undefined.
    ///
    /// It takes a lookup for each register that calls preserve.
    ///
    /// # Errors
    ///
    /// As [`find_row`](Self::find_row), of what cannot be read or is malformed.
    pub fn find_register_rules<M: Memory>(
        &self,
        mem: &mut M,
        addr: u64,
        scratch: &mut CfiScratch,
    ) -> Result<Option<RegisterRules>, RemoteCfiError> {
        let mut rules = RegisterRules::new();
        for &register in self.abi.preserved() {
            let at_pc = self.find_rules(mem, addr, scratch, Some(register))?;
            let Some(at_pc) = at_pc else { return Ok(None) };
            rules.add(DwarfReg(register), at_pc.rules.kept_rule());
        }
        Ok(Some(rules))
    }

    /// The number of the first entry of the search table that starts before the one before it;
    /// `None` if they are in order, as a search needs: of a table that is not, it misses
    /// rows that an [index](crate::index) has.
    ///
    /// It reads the whole table once, 8 bytes an entry, by at most 320 at a time, up to
    /// the first that is not in order.
    ///
    /// # Errors
    ///
    /// [`RemoteCfiError::Unreadable`].
    pub fn find_disorder<M: Memory>(
        &self,
        mem: &mut M,
        scratch: &mut CfiScratch,
    ) -> Result<Option<u32>, RemoteCfiError> {
        let mut addr = self.header_addr.wrapping_add(12);
        let (mut index, mut before) = (0_u32, i32::MIN);
        while index < self.header.count {
            let (window, _) = scratch.window.as_chunks_mut::<ENTRY_LEN>();
            let left = self.header.count.wrapping_sub(index);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(window.len());
            let window = window.get_mut(..len).unwrap_or_default();
            read(&mut reads(mem), addr, window.as_flattened_mut())?;
            for entry in window.iter() {
                let start = SearchEntry::read(*entry).start;
                if start < before {
                    return Ok(Some(index));
                }
                before = start;
                index = index.wrapping_add(1);
                addr = addr.wrapping_add(8);
            }
        }
        Ok(None)
    }

    /// The rules for an address: of `kept`, or else of the frame pointer.
    fn find_rules<M: Memory>(
        &self,
        mem: &mut M,
        addr: u64,
        scratch: &mut CfiScratch,
        kept: Option<u8>,
    ) -> Result<Option<PcRules>, RemoteCfiError> {
        self.find_rules_by(&mut reads(mem), addr, scratch, kept)
    }

    // By a pointer to what reads, so that it is compiled once and for size, and not with each memory, unless
    // calls are to be direct.
    #[cfg(not(feature = "direct-calls"))]
    #[inline(never)]
    fn find_rules_by(
        &self,
        mem: &mut dyn Reads,
        addr: u64,
        scratch: &mut CfiScratch,
        kept: Option<u8>,
    ) -> Result<Option<PcRules>, RemoteCfiError> {
        self.find_rules_of(mem, addr, scratch, kept)
    }

    #[cfg(feature = "direct-calls")]
    #[inline(never)]
    fn find_rules_by<R: Reads>(
        &self,
        mem: &mut R,
        addr: u64,
        scratch: &mut CfiScratch,
        kept: Option<u8>,
    ) -> Result<Option<PcRules>, RemoteCfiError> {
        self.find_rules_of(mem, addr, scratch, kept)
    }

    fn find_rules_of<R: Reads + ?Sized>(
        &self,
        mem: &mut R,
        addr: u64,
        scratch: &mut CfiScratch,
        kept: Option<u8>,
    ) -> Result<Option<PcRules>, RemoteCfiError> {
        let pc = self.abi.address(addr.wrapping_sub(self.bias));
        let Some(mut fde) = self.find_fde(mem, pc, &mut scratch.window)? else { return Ok(None) };
        let mut tries = MAX_EMPTY;
        loop {
            match self.rules_of(mem, fde, pc, scratch, kept) {
                Ok(Found::Empty { next }) if tries != 0 => fde = next,
                Ok(Found::Empty { .. } | Found::Elsewhere) => return Ok(None),
                Ok(Found::Rules(rules)) => return Ok(Some(rules)),
                // A CIE, or the end of the section, after FDEs about no code.
                Err(RemoteCfiError::Cfi(CfiError::NotFde { .. })) if tries != MAX_EMPTY => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            tries = tries.saturating_sub(1);
        }
    }

    /// The address of the FDE with the last start that is not above `pc`.
    fn find_fde<R: Reads + ?Sized>(
        &self,
        mem: &mut R,
        pc: u64,
        window: &mut [u8; WINDOW_LEN],
    ) -> Result<Option<u64>, RemoteCfiError> {
        const IN_WINDOW: u32 = 32;
        let distance = pc.wrapping_sub(self.header_addr).cast_signed();
        let is_below = |entry: SearchEntry| i64::from(entry.start) <= distance;
        let entries = self.header_addr.wrapping_add(12);
        let addr = |index: u32| entries.wrapping_add(u64::from(index).wrapping_mul(8));
        // Those from `after` on are above, those before `from` are not.
        let (mut from, mut after) = (0, self.header.count);
        while after.saturating_sub(from) > IN_WINDOW {
            let middle = from.midpoint(after);
            let mut bytes = [0; ENTRY_LEN];
            read(mem, addr(middle), &mut bytes)?;
            match is_below(SearchEntry::read(bytes)) {
                true => from = middle,
                false => after = middle,
            }
        }
        let count = usize::try_from(after.saturating_sub(from)).unwrap_or(0);
        let (window, _) = window.as_chunks_mut::<ENTRY_LEN>();
        let window = window.get_mut(..count).unwrap_or_default();
        read(mem, addr(from), window.as_flattened_mut())?;
        let below = window.partition_point(|entry| is_below(SearchEntry::read(*entry)));
        let found = below.checked_sub(1).and_then(|last| window.get(last));
        Ok(found.map(|entry| {
            let fde = SearchEntry::read(*entry).fde;
            self.abi.address(self.header_addr.wrapping_add_signed(fde.into()))
        }))
    }

    /// The section from this address on, of which `bytes` were read. Rules are kept of
    /// `kept`, or else of the frame pointer.
    fn entries<'b>(&self, bytes: &'b [u8], addr: u64, kept: Option<u8>) -> Entries<'b> {
        let mut section = CfiSection::eh_frame(bytes, addr);
        section.text = self.text;
        section.data = self.data;
        let entries = Entries::new(section, self.abi);
        kept.map_or(entries, |register| entries.keeping(register))
    }

    /// What the FDE at an address says of `pc`.
    fn rules_of<R: Reads + ?Sized>(
        &self,
        mem: &mut R,
        fde_addr: u64,
        pc: u64,
        scratch: &mut CfiScratch,
        kept: Option<u8>,
    ) -> Result<Found, RemoteCfiError> {
        let entry_len = entry_len(mem, fde_addr)?;
        let window = clipped(&mut scratch.window, entry_len);
        read(mem, fde_addr, window)?;
        let entries = self.entries(window, fde_addr, kept);
        let in_fde = |error: CfiError| self.error(error, fde_addr);
        let fde = entries.clipped_fde().map_err(in_fde)?;

        let cie_addr = self.abi.address(fde_addr.wrapping_add(fde.cie));
        let in_cie = |error: CfiError| self.error(error, cie_addr);
        let cie_len = usize::try_from(self::entry_len(mem, cie_addr)?).unwrap_or(usize::MAX);
        let cie_bytes = scratch.cie.get_mut(..cie_len).ok_or(CfiError::CieTooLong)?;
        read(mem, cie_addr, cie_bytes)?;
        let of_cie = self.entries(cie_bytes, cie_addr, kept);
        let cie = of_cie.cie(0).map_err(in_cie)?;

        let body = entries.body(&fde, &cie).map_err(in_fde)?;
        // No code continues after the end of the address space.
        let target = pc.checked_sub(body.start).filter(|&target| target < body.len);
        let Some(target) = target else {
            let next = fde_addr.wrapping_add(entry_len);
            let is_empty = body.len == 0;
            return Ok(if is_empty { Found::Empty { next } } else { Found::Elsewhere });
        };
        let mut remembered = States::new(&mut scratch.remembered);
        let mut evaluation =
            Evaluation::new(&of_cie, &cie, &mut remembered, target).map_err(in_cie)?;

        let Body { start, len, .. } = body;
        // In the entry: the next instruction, and the window, which it may not be all in.
        let mut next = entries.offset(&body.instructions);
        let mut window_at = 0;
        let instructions_len = usize::try_from(entry_len.saturating_sub(next));
        if instructions_len.map_or(true, |len| len > MAX_INSTRUCTIONS) {
            return Err(CfiError::TooManyInstructions.into());
        }
        loop {
            let window = clipped(&mut scratch.window, entry_len.saturating_sub(window_at));
            let window_addr = fde_addr.wrapping_add(window_at);
            if window_at != 0 {
                read(mem, window_addr, window)?;
            }
            let in_window = |error| self.error(error, window_addr);
            let entries = self.entries(window, window_addr, kept);
            let instructions = entries.from(next.wrapping_sub(window_at));
            let body = Body { start, len, instructions };
            let end = window_at.saturating_add(entries.section().len_u64());
            next = match evaluation.run(&entries, &cie, &body, &mut remembered) {
                Ok(is_reached) if is_reached || end == entry_len => {
                    return Ok(Found::Rules(PcRules::new(evaluation.rules(), &cie, pc)));
                }
                Ok(_) => end,
                Err((_, Some(cut))) if end != entry_len => {
                    let cut = window_at.saturating_add(entries.offset(&cut));
                    if cut == window_at {
                        // An expression that is longer than the window.
                        return Err(CfiError::TooManyInstructions.into());
                    }
                    cut
                }
                Err((error, _)) => return Err(in_window(error)),
            };
            window_at = next;
        }
    }

    /// An error about a section that starts at `addr`, as one about `.eh_frame`.
    #[cold]
    #[inline(never)]
    const fn error(&self, error: CfiError, addr: u64) -> RemoteCfiError {
        RemoteCfiError::Cfi(error.moved(addr.wrapping_sub(self.header.eh_frame)))
    }
}

/// Reads memory from an address on.
trait Reads: FnMut(u64, &mut [u8]) -> Result<(), ReadError> {}

impl<R: FnMut(u64, &mut [u8]) -> Result<(), ReadError>> Reads for R {}

fn reads<M: Memory>(mem: &mut M) -> impl Reads {
    |addr: u64, bytes: &mut [u8]| mem.read(VirtAddr::new(addr), bytes)
}

#[inline(never)]
fn read<R: Reads + ?Sized>(mem: &mut R, addr: u64, bytes: &mut [u8]) -> Result<(), RemoteCfiError> {
    mem(addr, bytes)
        .map_err(|error| RemoteCfiError::Unreadable { addr: VirtAddr::new(addr), error })
}

/// The length of the entry at an address, with its length field.
fn entry_len<R: Reads + ?Sized>(mem: &mut R, addr: u64) -> Result<u64, RemoteCfiError> {
    let mut len = [0; 4];
    read(mem, addr, &mut len)?;
    let len = u32::from_le_bytes(len);
    if len != u32::MAX {
        return Ok(u64::from(len).saturating_add(4));
    }
    let mut len = [0; 8];
    read(mem, addr.wrapping_add(4), &mut len)?;
    Ok(u64::from_le_bytes(len).saturating_add(12))
}

/// The first `len` bytes of a window, or all of it if it is shorter.
fn clipped(window: &mut [u8], len: u64) -> &mut [u8] {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(window.len());
    window.get_mut(..len).unwrap_or_default()
}
