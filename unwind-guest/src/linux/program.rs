//! An ELF object of user code, in memory.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::program_symbols::Dynamic;
use crate::linux::symbol::{Symbol, SymbolName};
use crate::linux::window::Window;

/// How many pages below code its header is looked for in: 64 MiB.
pub const PROGRAM_PAGES: u64 = 1 << 14;

/// How many headers of segments, and notes, an object may have.
pub const HEADERS_LIMIT: u16 = 64;

const PAGE: u64 = 4096;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NOTE: u32 = 4;
const EH_FRAME: u32 = 0x6474_e550;
const SFRAME: u32 = 0x6474_e554;
const EXECUTABLE: u32 = 1;

/// A program or a library that is loaded, found by the header below its code. What it has is read in place, and may not
/// be resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    is_wide: bool,
    /// Where the header is.
    start: u64,
    bias: u64,
    text: (u64, u64),
    text_offset: u64,
    /// Past all that is loaded of it.
    loaded_end: u64,
    eh_frame_header: Option<u64>,
    sframe: Option<(u64, u64)>,
    dynamic: Option<Dynamic>,
    build_id: Option<BuildId>,
}

/// What names a build of an object. A longer one is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BuildId {
    bytes: [u8; 32],
    len: u8,
}

impl BuildId {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// A header of a segment.
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    addr: u64,
    size: u64,
}

/// What a search for the object of some code has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is no memory but the stack, and the usual one is large"
)]
pub enum ProgramSearch {
    /// The object.
    Found(Program),
    /// None: from this page on, up to that of the code, there is no header, and no code of the object below.
    NothingFrom(VirtAddr),
}

impl Program {
    /// The object that the code at `pc` is of: by the next ELF header in a page below it. `None` if there is none
    /// within [`PROGRAM_PAGES`], or if its code is not there. Pages that are not mapped are passed over.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`] if what follows the header cannot be read.
    pub fn find<M: Memory>(pc: VirtAddr, mem: &mut M) -> Result<Option<Self>, LinuxError> {
        Ok(match Self::search(pc, VirtAddr::new(0), mem)? {
            ProgramSearch::Found(program) => Some(program),
            ProgramSearch::NothingFrom(_) => None,
        })
    }

    /// The same in pages from `floor` on, for those who know what an earlier search has passed over: code without an
    /// object, such as that of a JIT compiler, has each of its pages looked at only once by them.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`] if what follows the header cannot be read.
    pub fn search<M: Memory>(
        pc: VirtAddr,
        floor: VirtAddr,
        mem: &mut M,
    ) -> Result<ProgramSearch, LinuxError> {
        let first = pc.get() & !(PAGE - 1);
        let mut lowest = first;
        for page in 0..PROGRAM_PAGES {
            let start = first.checked_sub(page.saturating_mul(PAGE));
            let Some(start) = start.filter(|start| *start >= floor.get()) else { break };
            lowest = start;
            let mut magic = [0; 4];
            if mem.read(VirtAddr::new(start), &mut magic).is_ok() && magic == *b"\x7fELF" {
                let Some(found) = Self::open(VirtAddr::new(start), pc, mem)? else {
                    lowest = first;
                    break;
                };
                if found.text().contains(&pc.get()) {
                    return Ok(ProgramSearch::Found(found));
                }
                let after = found.loaded_end.checked_next_multiple_of(PAGE).unwrap_or(first);
                lowest = after.clamp(start, first);
                break;
            }
        }
        Ok(ProgramSearch::NothingFrom(VirtAddr::new(lowest)))
    }

    /// The object whose header is at `start`, and whose code is at `pc`; `None` if it is none for x86.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn open<M: Memory>(
        start: VirtAddr,
        pc: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Self>, LinuxError> {
        let mut window = Window::new(mem);
        let start = start.get();
        let of = |offset: u64| start.wrapping_add(offset);
        let is_wide = match (window.u32(of(0))?, window.u32(of(4))? & 0xffff) {
            (0x464c_457f, 0x0102) => true,
            (0x464c_457f, 0x0101) => false,
            _ => return Ok(None),
        };
        let (headers, size, count) = match is_wide {
            true => (window.u64(of(32))?, window.u16(of(54))?, window.u16(of(56))?),
            false => (window.u32(of(28))?.into(), window.u16(of(42))?, window.u16(of(44))?),
        };
        if size != (if is_wide { 56 } else { 32 }) || count > HEADERS_LIMIT {
            return Ok(None);
        }
        let segment = |index: u16, window: &mut Window<'_, M>| {
            let at = of(headers).wrapping_add(u64::from(index).wrapping_mul(size.into()));
            Segment::read(at, is_wide, window)
        };
        // Where the first bytes of the file were linked for.
        let mut bias = None;
        for index in 0..count {
            let segment = segment(index, &mut window)?;
            if segment.kind == LOAD && segment.offset == 0 {
                bias = Some(start.wrapping_sub(segment.addr));
                break;
            }
        }
        let Some(bias) = bias else { return Ok(None) };
        let mut found = Self {
            is_wide,
            start,
            bias,
            text: (0, 0),
            text_offset: 0,
            loaded_end: 0,
            eh_frame_header: None,
            sframe: None,
            dynamic: None,
            build_id: None,
        };
        for index in 0..count {
            let segment = segment(index, &mut window)?;
            found.add(&segment, pc, &mut window);
        }
        Ok(Some(found))
    }

    fn add<M: Memory>(&mut self, segment: &Segment, pc: VirtAddr, window: &mut Window<'_, M>) {
        let start = segment.addr.wrapping_add(self.bias);
        let end = start.saturating_add(segment.size);
        if segment.kind == LOAD {
            self.loaded_end = self.loaded_end.max(end);
        }
        match segment.kind {
            LOAD if segment.flags & EXECUTABLE != 0 && (start..end).contains(&pc.get()) => {
                (self.text, self.text_offset) = ((start, end), segment.offset);
            }
            EH_FRAME => self.eh_frame_header = Some(start),
            SFRAME => self.sframe = Some((start, segment.size)),
            DYNAMIC => {
                let dynamic =
                    Dynamic::read(start..end, self.is_wide, (self.start, self.bias), window);
                self.dynamic = dynamic.ok().flatten();
            }
            NOTE if self.build_id.is_none() => {
                self.build_id = build_id(start..end, window).ok().flatten();
            }
            _ => {}
        }
    }

    /// Whether it is 64-bit code.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Where its header is.
    #[must_use]
    pub const fn start(&self) -> VirtAddr {
        VirtAddr::new(self.start)
    }

    /// How far above the addresses that it was linked for it is, wrapping.
    #[must_use]
    pub const fn bias(&self) -> u64 {
        self.bias
    }

    /// The addresses of its code.
    #[must_use]
    pub const fn text(&self) -> Range<u64> {
        self.text.0..self.text.1
    }

    /// Where in its file that code is.
    #[must_use]
    pub const fn text_offset(&self) -> u64 {
        self.text_offset
    }

    /// Where its `.eh_frame_hdr` is in memory. What is opened there has the addresses of memory, so it needs no
    /// [bias](Self::bias).
    #[must_use]
    pub const fn eh_frame_header(&self) -> Option<u64> {
        self.eh_frame_header
    }

    /// Where its `.sframe` is, and how many bytes that has.
    #[must_use]
    pub const fn sframe(&self) -> Option<(u64, u64)> {
        self.sframe
    }

    /// Its build id.
    #[must_use]
    pub const fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// The name that a library has for those that need it; the guest's, any bytes.
    pub fn name<M: Memory>(&self, mem: &mut M) -> Option<SymbolName> {
        self.dynamic?.name(mem)
    }

    /// The function at an address by the symbols that the dynamic linker has. Symbols that are not resident are
    /// passed over.
    pub fn find_at<M: Memory>(&self, addr: VirtAddr, mem: &mut M) -> Option<Symbol> {
        self.dynamic?.find_at(addr, self.bias, mem)
    }
}

impl Segment {
    fn read<M: Memory>(
        at: u64,
        is_wide: bool,
        window: &mut Window<'_, M>,
    ) -> Result<Self, LinuxError> {
        let of = |offset: u64| at.wrapping_add(offset);
        let kind = window.u32(at)?;
        Ok(if is_wide {
            Self {
                kind,
                flags: window.u32(of(4))?,
                offset: window.u64(of(8))?,
                addr: window.u64(of(16))?,
                size: window.u64(of(40))?,
            }
        } else {
            Self {
                kind,
                flags: window.u32(of(24))?,
                offset: window.u32(of(4))?.into(),
                addr: window.u32(of(8))?.into(),
                size: window.u32(of(20))?.into(),
            }
        })
    }
}

/// The build id in a segment of notes.
fn build_id<M: Memory>(
    range: Range<u64>,
    window: &mut Window<'_, M>,
) -> Result<Option<BuildId>, LinuxError> {
    let mut at = range.start;
    for _ in 0..HEADERS_LIMIT {
        if at >= range.end {
            break;
        }
        let of = |offset: u64| at.wrapping_add(offset);
        let (name_len, len, kind) = (window.u32(at)?, window.u32(of(4))?, window.u32(of(8))?);
        let padded = |len: u32| u64::from(len).saturating_add(3) & !3;
        let content = of(12).wrapping_add(padded(name_len));
        if name_len == 4 && kind == 3 && window.u32(of(12))? == u32::from_le_bytes(*b"GNU\0") {
            let mut bytes = [0; 32];
            let len = u8::try_from(len).unwrap_or(u8::MAX);
            let Some(into) = bytes.get_mut(..usize::from(len)) else { return Ok(None) };
            window.read(content, into)?;
            return Ok(Some(BuildId { bytes, len }));
        }
        at = content.wrapping_add(padded(len));
    }
    Ok(None)
}
