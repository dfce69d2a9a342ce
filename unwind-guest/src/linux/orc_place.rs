//! Where a kernel has its ORC table: by its symbols, or by the shape of one.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::window::{Window, read};
use crate::orc::{OrcLayout, OrcTable};

/// How many entries a table has at least that is looked for by its shape.
const ENTRIES: u32 = 1024;
/// How many entries of a table are looked at.
const ENTRIES_LIMIT: u32 = 1 << 16;
/// How many arrays of ascending addresses are looked at.
const TRIES: u32 = 64;

/// How far from an entry's place on there are entries, and no code: read as distances, most of them lead there.
const TABLES: u64 = 1 << 15;
const PAGE: u64 = 4096;
const BLOCK: usize = 1024;
/// The bytes of an address and of an entry.
const IP_SIZE: u64 = 4;
const ENTRY_SIZE: u64 = 6;
const HEADER_SIZE: u64 = 20;

/// The table between these addresses.
pub(crate) fn by_symbols<M: Memory>(
    header: u64,
    ips: Range<u64>,
    entries: Range<u64>,
    mem: &mut M,
) -> Option<(OrcLayout, OrcTable<'static>)> {
    let len = |range: &Range<u64>| range.end.checked_sub(range.start).filter(|len| *len > 0);
    let count = u32::try_from(len(&ips)? / IP_SIZE).ok()?;
    if len(&entries)? / ENTRY_SIZE != u64::from(count) {
        return None;
    }
    table(header, ips.start, entries.start, count, false, mem)
}

/// The table of a kernel that does not name its variables (without `CONFIG_KALLSYMS_ALL`): one array of ascending
/// addresses, each above its own place, and entries of one known layout after it, as Linux's linker script has them.
pub(crate) fn by_shape<M: Memory>(
    image: &Range<u64>,
    mem: &mut M,
) -> Option<(OrcLayout, OrcTable<'static>)> {
    let (mut run, mut tries) = (Run::NONE, TRIES);
    let mut block = [0; BLOCK];
    let mut at = image.start;
    while at < image.end {
        let is_there = mem.read(VirtAddr::new(at), &mut block).is_ok();
        let words = if is_there { block.as_slice() } else { &[] };
        for (place, word) in (at..).step_by(4).zip(words.chunks_exact(4)) {
            let offset = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
            let addr = place.wrapping_add_signed(offset.into());
            if run.take(place, addr, image) {
                continue;
            }
            if run.count >= ENTRIES {
                if let Some(found) = run.table(mem) {
                    return Some(found);
                }
                tries = tries.checked_sub(1)?;
            }
            run = Run::NONE;
            let _ = run.take(place, addr, image);
        }
        if is_there {
            at = at.wrapping_add(1024);
        } else {
            // A table's addresses and entries are all there.
            (run, at) = (Run::NONE, (at | (PAGE - 1)).wrapping_add(1));
        }
    }
    None
}

/// Addresses that ascend.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    /// The last of the addresses.
    last: u64,
    count: u32,
}

impl Run {
    const NONE: Self = Self { start: 0, last: 0, count: 0 };

    /// Continues with the address that is kept at `place`; says whether it is one more.
    fn take(&mut self, place: u64, addr: u64, image: &Range<u64>) -> bool {
        let is_next = match self.count {
            // The kernel's first code is before its tables, that of its start after them.
            0 => addr < place,
            _ => addr >= self.last && !(place..place.saturating_add(TABLES)).contains(&addr),
        };
        if !is_next || !image.contains(&addr) {
            return false;
        }
        if self.count == 0 {
            self.start = place;
        }
        (self.last, self.count) = (addr, self.count.saturating_add(1));
        true
    }

    /// The table whose addresses these are. Its first entries may have looked like some more addresses; read as entries,
    /// addresses are of no layout. So the fewest are right.
    fn table<M: Memory>(&self, mem: &mut M) -> Option<(OrcLayout, OrcTable<'static>)> {
        let counts = (0..16).rev().filter_map(|more| self.count.checked_sub(more));
        counts.into_iter().find_map(|count| {
            let entries = self.start.wrapping_add(IP_SIZE.wrapping_mul(count.into()));
            table(self.start.wrapping_sub(HEADER_SIZE), self.start, entries, count, true, mem)
        })
    }
}

/// The table of which the header, if there is one, and the two arrays are there; `None` if its entries are of no layout.
/// Those of a layout that the header names are looked at as well if they are `doubtful`.
fn table<M: Memory>(
    header: u64,
    ips: u64,
    entries: u64,
    count: u32,
    doubtful: bool,
    mem: &mut M,
) -> Option<(OrcLayout, OrcTable<'static>)> {
    let mut bytes = [0; 20];
    let named = (header != 0 && read(mem, header, &mut bytes).is_ok())
        .then(|| OrcLayout::of_header(&bytes))
        .flatten();
    let mut window = Window::new(mem);
    let starts =
        (0..count.min(ENTRIES_LIMIT)).map(|index| u64::from(index).wrapping_mul(ENTRY_SIZE));
    let some = starts.map_while(|offset| {
        let mut entry = [0; 6];
        window.read(entries.wrapping_add(offset), &mut entry).ok()?;
        Some(entry)
    });
    let layout = match named {
        Some(layout) if doubtful => Some(layout).filter(|layout| layout.fits(some))?,
        Some(layout) => layout,
        None => OrcLayout::detect(some)?,
    };
    let (ips, entries) = (VirtAddr::new(ips), VirtAddr::new(entries));
    Some((layout, OrcTable::in_memory(layout, ips, entries, count)))
}
