//! Compares the rows of a file's `.eh_frame` with gimli's, at every place where a row
//! starts, and at random places.

use std::collections::BTreeMap;

use gimli::{CieOrFde, RunTimeEndian, UnwindContext, UnwindSection as _};
use object::{Architecture, Object as _, ObjectSection as _};
use unwind_cfi::{
    CfiAbi, CfiError, CfiScratch, CfiSection, CfiTable, Entries, IndexEntry, RemoteCfi, index,
};
use unwind_core::{DwarfReg, Memory, ReadError, RegRule, RegisterRules, Row, VirtAddr};

use crate::gimli_frames::{Caller, Deep, Machine, Reader};

/// The sections of a file, at their addresses.
struct Sections<'a>(Vec<(u64, &'a [u8])>);

impl Memory for Sections<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let bytes = self.0.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.get().checked_sub(*start)?).ok()?;
            bytes.get(at..)?.get(..buf.len())
        });
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

/// What came of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Places that were looked at.
    pub(crate) looked_at: u64,
    /// Places where both lead to the same caller.
    pub(crate) same: u64,
    /// Places that are in no FDE by both.
    pub(crate) none: u64,
    /// Places where they do not say the same.
    pub(crate) differ: Vec<String>,
    /// Places that no row can say, by reason.
    pub(crate) unsaid: BTreeMap<&'static str, u64>,
    /// Places where gimli has no caller but we have: it knows no value of an expression.
    pub(crate) more: u64,
    /// How often a register is saved by both.
    pub(crate) saved: u64,
    /// The largest FDE, in bytes.
    pub(crate) largest: usize,
}

/// Compares a file, if it is one of x86 code with `.eh_frame`.
pub(crate) fn compare(bytes: &[u8], random: usize) -> Option<Comparison> {
    let file = object::File::parse(bytes).ok()?;
    let abi = match file.architecture() {
        Architecture::X86_64 => CfiAbi::X86_64,
        Architecture::I386 => CfiAbi::Ia32,
        _ => return None,
    };
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        Some((section.uncompressed_data().ok()?, section.address()))
    };
    let (frame, frame_addr) = section(".eh_frame")?;
    let (text, got) = (section(".text"), section(".got"));
    let mut cfi = CfiSection::eh_frame(&frame, frame_addr);
    let mut bases = gimli::BaseAddresses::default().set_eh_frame(frame_addr);
    if let Some((_, text)) = &text {
        (cfi, bases) = (cfi.text(*text), bases.set_text(*text));
    }
    if let Some((_, got)) = &got {
        (cfi, bases) = (cfi.data(*got), bases.set_got(*got));
    }
    let header = section(".eh_frame_hdr");
    let mut by_header = None;
    if let Some((bytes, addr)) = &header {
        by_header = CfiTable::with_search_table(cfi, abi, bytes, *addr).unwrap();
    }
    let mut slots = Vec::new();
    if by_header.is_none() {
        let entries = Entries::new(cfi, abi);
        let needed = index(entries, &mut []).err().map_or(0, |few| few.needed);
        slots.resize(needed, IndexEntry::default());
        index(entries, &mut slots).unwrap();
    }
    let mut sections = Sections(vec![(frame_addr, &frame)]);
    let mut remote = None;
    if let Some((bytes, addr)) = &header {
        sections.0.push((*addr, bytes));
        remote = RemoteCfi::open(&mut sections, abi, *addr).unwrap();
        remote = remote.map(|remote| match &got {
            Some((_, got)) => remote.data(*got),
            None => remote,
        });
        remote = remote.map(|remote| match &text {
            Some((_, text)) => remote.text(*text),
            None => remote,
        });
        assert_eq!(remote.is_some(), by_header.is_some());
    }
    let table = by_header.unwrap_or(CfiTable::with_index(cfi, abi, &slots));

    let mut gimli_section = gimli::EhFrame::from(Reader::new(&frame, RunTimeEndian::Little));
    gimli_section.set_address_size(abi.address_size());
    let mut context = UnwindContext::<usize, Deep>::new_in();
    let mut scratch = CfiScratch::new();
    let find = |sections: &mut Sections<'_>, scratch: &mut CfiScratch, pc| {
        let found = table.find_row(pc);
        if let Some(remote) = &remote {
            let far = remote.find_row(sections, pc, scratch);
            assert_eq!(far, found.map_err(Into::into), "at {pc:#x}");
        }
        found
    };
    let pcs = random_pcs(&file, random);
    let mut was_met = vec![false; pcs.len()];
    let mut comparison = Comparison::default();
    let mut entries = gimli_section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(gimli::UnwindSection::cie_from_offset) else { continue };
        if fde.len() == 0 || fde.initial_address() == 0 {
            continue;
        }
        let ra = fde.cie().return_address_register().0;
        let fde_end = fde.initial_address() + fde.len();
        comparison.largest = comparison.largest.max(fde.entry_len());
        let mut rows = fde.rows(&gimli_section, &bases, &mut context).unwrap();
        while let Ok(Some(row)) = rows.next_row() {
            let (start, end) = (row.start_address(), row.end_address().min(fde_end));
            if start >= end {
                continue;
            }
            let chosen = pcs.partition_point(|&pc| pc < start)..pcs.partition_point(|&pc| pc < end);
            was_met[chosen.clone()].fill(true);
            let rules = table.find_register_rules(start);
            if let Some(remote) = &remote {
                let far = remote.find_register_rules(&mut sections, start, &mut scratch);
                assert_eq!(far, rules.clone().map_err(Into::into), "at {start:#x}");
            }
            comparison.look_at_others(start, abi, rules.ok().flatten().as_ref(), row);
            // Lazy linkage tables have one row for all their code, so more than its start.
            for pc in [start, end - 1].into_iter().chain(pcs[chosen].iter().copied()) {
                let machine =
                    Machine { abi, pc, seed: pc.rotate_left(17) ^ 0x1234_5678, bits: u64::MAX };
                let expected = machine.follow(&gimli_section, row, ra);
                comparison.look(find(&mut sections, &mut scratch, pc), machine, Some(expected));
            }
        }
    }
    for (&pc, _) in pcs.iter().zip(&was_met).filter(|&(_, &met)| !met) {
        comparison.look(
            find(&mut sections, &mut scratch, pc),
            Machine { abi, pc, seed: pc, bits: u64::MAX },
            None,
        );
    }
    Some(comparison)
}

/// Ascending places in the code of a file.
fn random_pcs(file: &object::File<'_>, count: usize) -> Vec<u64> {
    let code: Vec<_> = file
        .sections()
        .filter(|section| section.kind() == object::SectionKind::Text && section.size() != 0)
        .map(|section| (section.address(), section.size()))
        .collect();
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let all: u64 = code.iter().map(|(_, size)| size).sum();
    let mut pcs = Vec::new();
    while pcs.len() < count && all != 0 {
        let mut at = random() % all;
        for &(addr, size) in &code {
            if at < size {
                pcs.push(addr + at);
                break;
            }
            at -= size;
        }
    }
    pcs.sort_unstable();
    pcs
}

impl Comparison {
    /// Compares the rules of the registers that calls preserve.
    fn look_at_others(
        &mut self,
        pc: u64,
        abi: CfiAbi,
        found: Option<&RegisterRules>,
        row: &gimli::UnwindTableRow<usize, Deep>,
    ) {
        let preserved: &[u8] = if abi == CfiAbi::Ia32 { &[3, 6, 7] } else { &[3, 12, 13, 14, 15] };
        let Some(found) = found else {
            return self.differ.push(format!("{pc:#x} has no rules of registers"));
        };
        for &number in preserved {
            let ours = found.get(DwarfReg(number));
            let same = match row.register(gimli::Register(number.into())) {
                Some(gimli::RegisterRule::Offset(offset)) => {
                    self.saved += 1;
                    ours == RegRule::Offset(i32::try_from(offset).unwrap())
                }
                Some(gimli::RegisterRule::Undefined) => ours == RegRule::Undefined,
                None | Some(gimli::RegisterRule::SameValue) => ours == RegRule::SameValue,
                // Expressions, of signal trampolines.
                _ => ours != RegRule::SameValue,
            };
            if !same {
                let theirs = row.register(gimli::Register(number.into()));
                self.differ.push(format!("{pc:#x} r{number}: {ours:?} against {theirs:?}"));
            }
        }
    }

    /// What was found at one place. `expected` is `None` where no FDE is, and `Some(None)` where
    /// gimli has no caller.
    fn look(
        &mut self,
        found: Result<Option<Row>, CfiError>,
        machine: Machine,
        expected: Option<Option<Caller>>,
    ) {
        self.looked_at += 1;
        let is_same = match (&found, expected) {
            (Ok(None), None) => {
                self.none += 1;
                return;
            }
            (Err(reason), Some(_)) if !reason.is_fault() => {
                *self.unsaid.entry(reason.name()).or_default() += 1;
                return;
            }
            (Ok(Some(row)), Some(_)) if row.is_context_only() => {
                *self.unsaid.entry("signal-context").or_default() += 1;
                return;
            }
            (Ok(Some(_)), Some(None)) => {
                self.more += 1;
                return;
            }
            (Ok(Some(row)), Some(Some(expected))) => {
                machine.apply(row).is_some_and(|ours| ours.agrees_with(expected))
            }
            _ => false,
        };
        if is_same {
            self.same += 1;
        } else if self.differ.len() < 20 {
            let pc = machine.pc;
            self.differ.push(format!("{pc:#x}: {found:?} against {expected:x?}"));
        }
    }
}
