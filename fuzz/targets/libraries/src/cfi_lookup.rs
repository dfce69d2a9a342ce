//! Single rows of an `.eh_frame`, looked up in place and in parts.

use gimli::{CieOrFde, RunTimeEndian, UnwindSection as _};
use unwind_cfi::{
    CfiAbi, CfiError, CfiScratch, CfiSection, CfiTable, Entries, IndexEntry, MAX_INSTRUCTIONS,
    RemoteCfi, RemoteCfiError, index, work_counter,
};
use unwind_core::{Memory, ReadError, VirtAddr};

use crate::gimli_frames::{Deep, Machine, Reader};

const FRAME: u64 = 0x10_0000;
const HEADER: u64 = 0x8_0000;

/// The most FDEs of an input that are looked at.
const FDES: usize = 64;

/// `.eh_frame` and `.eh_frame_hdr` of a target, which counts what is read.
struct Target<'a> {
    parts: [(u64, &'a [u8]); 2],
    reads: usize,
}

impl Memory for Target<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        let bytes = self.parts.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.get().checked_sub(*start)?).ok()?;
            bytes.get(at..)?.get(..buf.len())
        });
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

/// An ABI and an `.eh_frame`: the rows of each FDE lead where gimli's lead, in place and in
/// parts, and each takes bounded work.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, frame)) = data.split_first() else { return };
    let abi = if choice & 1 == 0 { CfiAbi::X86_64 } else { CfiAbi::Ia32 };
    let section = CfiSection::eh_frame(frame, FRAME);
    let mut slots = [IndexEntry::default(); FDES];
    let Ok(index) = index(Entries::new(section, abi), &mut slots) else { return };
    let table = CfiTable::with_index(section, abi, index);
    let header = header(index);
    let by_header = CfiTable::with_search_table(section, abi, &header, HEADER).unwrap().unwrap();
    let mut target = Target { parts: [(FRAME, frame), (HEADER, &header)], reads: 0 };
    let remote = RemoteCfi::open(&mut target, abi, HEADER).unwrap().unwrap();
    let mut scratch = CfiScratch::new();
    let mut find = |pc| {
        let mut found = Ok(None);
        let steps = work_counter::count(|| found = table.find_row(pc));
        assert!(steps <= 2 * MAX_INSTRUCTIONS + 4 * 256, "{steps}");
        if !fits(pc) {
            return found;
        }
        assert_eq!(by_header.find_row(pc), found, "{pc:#x}");
        target.reads = 0;
        match (remote.find_row(&mut target, pc, &mut scratch), found) {
            // What is outside of the section is not there.
            (Err(RemoteCfiError::Unreadable { .. }), _) | (_, Err(_)) => {}
            // A CIE or an expression that is not kept as a whole.
            (
                Err(RemoteCfiError::Cfi(CfiError::CieTooLong | CfiError::TooManyInstructions)),
                Ok(_),
            ) => {}
            (far, found) => assert_eq!(far, found.map_err(Into::into), "{pc:#x}"),
        }
        assert!(target.reads <= 5 * (48 + MAX_INSTRUCTIONS / 160), "{}", target.reads);
        found
    };

    let mut gimli_section = gimli::EhFrame::from(Reader::new(frame, RunTimeEndian::Little));
    gimli_section.set_address_size(abi.address_size());
    let bases = gimli::BaseAddresses::default().set_eh_frame(FRAME);
    let mut context = gimli::UnwindContext::<usize, Deep>::new_in();
    let mut entries = gimli_section.entries(&bases);
    let mut left = FDES;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(gimli::EhFrame::cie_from_offset) else { continue };
        left -= 1;
        let start = fde.initial_address();
        // Where two describe one place, either may be found.
        let is_only = index.iter().filter(|entry| entry.start() == start).count() == 1;
        let ra = fde.cie().return_address_register().0;
        let Ok(mut rows) = fde.rows(&gimli_section, &bases, &mut context) else { continue };
        while let Ok(Some(row)) = rows.next_row() {
            let pc = row.start_address();
            if pc != start || row.end_address() <= pc || fde.len() == 0 {
                break;
            }
            let found = find(pc);
            let machine =
                Machine { abi, pc, seed: pc.rotate_left(9) ^ 0x1234_5678, bits: u64::MAX };
            let expected = machine.follow(&gimli_section, row, ra);
            if let (Ok(Some(row)), Some(expected), true) = (found, expected, is_only) {
                let ours = machine.apply(&row);
                assert!(
                    row.is_context_only() || ours.is_some_and(|ours| ours.agrees_with(expected)),
                    "{pc:#x}: {row:?} {ours:x?} against {expected:x?}"
                );
            }
        }
        if left == 0 {
            break;
        }
    }
    for entry in index {
        for offset in [0, 1, 7, 100] {
            _ = find(entry.start().wrapping_add(offset));
        }
    }
}

/// Whether a search table can name an address.
fn fits(addr: u64) -> bool {
    i32::try_from(addr.wrapping_sub(HEADER).cast_signed()).is_ok()
}

/// `.eh_frame_hdr` of the FDEs that it can name.
fn header(index: &[IndexEntry]) -> Vec<u8> {
    let named: Vec<_> = index.iter().filter(|entry| fits(entry.start())).collect();
    let relative =
        |addr: u64| i32::try_from(addr.wrapping_sub(HEADER).cast_signed()).unwrap().to_le_bytes();
    let mut bytes = vec![1, 0x1b, 3, 0x3b];
    bytes.extend(u32::try_from(FRAME - HEADER - 4).unwrap().to_le_bytes());
    bytes.extend(u32::try_from(named.len()).unwrap().to_le_bytes());
    // In the order of the distances, as linkers sort them.
    let mut entries: Vec<_> = named.iter().map(|e| (relative(e.start()), e.at())).collect();
    entries.sort_by_key(|(start, at)| (i32::from_le_bytes(*start), *at));
    for (start, at) in entries {
        bytes.extend(start);
        bytes.extend(relative(FRAME + at));
    }
    bytes
}
