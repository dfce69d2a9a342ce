//! Lookups of single rows, in the order in which walks ask for them.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindSection as _, UnwindTableRow,
};
use sframe::{IndexedTable, Table};
use simple_frame_rs::SFrameSection;

use crate::corpus::{Corpus, Tables};
use crate::{Gimli, Unwinder as _};

/// One image and the addresses in it that walks look up, as linked, in order of
/// time and from the innermost frame out.
#[derive(Debug)]
pub struct Lookups {
    /// The image.
    pub tables: &'static Tables,
    /// The addresses.
    pub pcs: Vec<u64>,
}

impl Lookups {
    /// Those in the image of the corpus in which most frames are.
    ///
    /// # Panics
    ///
    /// If the corpus has no frames.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        let mut reference = Gimli::new(corpus);
        let mut found: Vec<Self> = Vec::new();
        for snapshot in &corpus.snapshots {
            reference.walk(snapshot);
            for (at, frame) in reference.frames().into_iter().enumerate() {
                // The last byte of a call, or the sampled instruction itself.
                let pc = frame - u64::from(at > 0);
                let mut modules = corpus.covered();
                let Some(module) = modules.find(|module| module.text.contains(&pc)) else {
                    continue;
                };
                let of_it = |lookups: &&mut Self| std::ptr::eq(lookups.tables, module.tables);
                let pc = pc.wrapping_sub(module.bias);
                match found.iter_mut().find(of_it) {
                    Some(lookups) => lookups.pcs.push(pc),
                    None => found.push(Self { tables: module.tables, pcs: vec![pc] }),
                }
            }
        }
        found.into_iter().max_by_key(|lookups| lookups.pcs.len()).unwrap()
    }

    /// How many bytes of code of this image are mapped.
    #[must_use]
    pub fn text_len(&self, corpus: &Corpus) -> u64 {
        let of_it = corpus.covered().filter(|module| std::ptr::eq(module.tables, self.tables));
        of_it.map(|module| module.text.end - module.text.start).sum()
    }

    /// The SFrame table of version 3.
    #[must_use]
    pub fn table(&self) -> Table<'static> {
        Table::parse(&self.tables.sframe).unwrap().at(self.tables.sframe_addr)
    }

    /// The SFrame table of version 2.
    #[must_use]
    pub fn table_v2(&self) -> Table<'static> {
        Table::parse(&self.tables.sframe_v2).unwrap().at(self.tables.sframe_addr)
    }

    /// The same with an index.
    #[must_use]
    pub fn indexed(&self) -> IndexedTable<'static, 'static> {
        let table = self.table();
        table.index(vec![0; table.index_len()].leak())
    }
}

/// How many of the addresses have a row.
#[must_use]
pub fn plain(table: &Table<'_>, pcs: &[u64]) -> usize {
    pcs.iter().filter(|&&pc| table.find_row(pc).unwrap().is_some()).count()
}

/// The same by an index.
#[must_use]
pub fn indexed(table: &IndexedTable<'_, '_>, pcs: &[u64]) -> usize {
    pcs.iter().filter(|&&pc| table.find_row(pc).unwrap().is_some()).count()
}

/// The same by simple-frame-rs.
///
/// # Panics
///
/// If it does not know the table.
#[must_use]
pub fn simple_frame(tables: &Tables, pcs: &[u64]) -> usize {
    let table = SFrameSection::from(&tables.sframe_v2, tables.sframe_addr).unwrap();
    let find = |pc: u64| table.find_fde(pc).ok()??.find_fre(&table, pc).ok()?;
    pcs.iter().filter(|&&pc| find(pc).is_some()).count()
}

/// The same by gimli, over `.eh_frame`.
///
/// # Panics
///
/// If it does not know the table.
#[must_use]
pub fn gimli(tables: &Tables, pcs: &[u64]) -> usize {
    let bases = BaseAddresses::default()
        .set_eh_frame(tables.eh_frame_addr)
        .set_eh_frame_hdr(tables.header_addr);
    let header = EhFrameHdr::new(&tables.header, LittleEndian).parse(&bases, 8).unwrap();
    let table = header.table().unwrap();
    let eh_frame: EhFrame<EndianSlice<'_, LittleEndian>> =
        EhFrame::new(&tables.eh_frame, LittleEndian);
    let mut context = UnwindContext::new();
    let mut find = |pc: u64| {
        let get_cie = EhFrame::cie_from_offset;
        table.unwind_info_for_address(&eh_frame, &bases, &mut context, pc, get_cie).is_ok()
    };
    pcs.iter().filter(|&&pc| find(pc)).count()
}

/// Room for the rules of the 17 registers that have a column, and for nested states.
#[derive(Debug)]
struct Few;

impl UnwindContextStorage<usize> for Few {
    type Rules = [(Register, RegisterRule<usize>); 17];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

/// Runs the rows of all functions by gimli; returns how many there are.
///
/// # Panics
///
/// If an entry is malformed.
#[must_use]
pub fn gimli_rows(tables: &Tables) -> usize {
    let bases = BaseAddresses::default().set_eh_frame(tables.eh_frame_addr);
    let eh_frame = EhFrame::new(&tables.eh_frame, LittleEndian);
    // As its best users set it up: a CIE is read once, and rows have room for the registers of the CPU.
    let mut context: UnwindContext<usize, Few> = UnwindContext::new_in();
    let mut cies = HashMap::new();
    let mut entries = eh_frame.entries(&bases);
    let mut rows = 0;
    while let Some(entry) = entries.next().unwrap() {
        let partial = match entry {
            gimli::CieOrFde::Cie(cie) => {
                cies.insert(cie.offset(), cie);
                continue;
            }
            gimli::CieOrFde::Fde(partial) => partial,
        };
        let kept = |section: &EhFrame<_>, bases: &_, at: gimli::EhFrameOffset| match cies.get(&at.0)
        {
            Some(cie) => Ok(cie.clone()),
            None => section.cie_from_offset(bases, at),
        };
        let fde = partial.parse(kept).unwrap();
        let mut table = fde.rows(&eh_frame, &bases, &mut context).unwrap();
        while table.next_row().unwrap().is_some() {
            rows += 1;
        }
    }
    rows
}

/// Decodes all rows by simple-frame-rs; returns how many there are.
///
/// # Panics
///
/// If it does not know the table.
#[must_use]
pub fn simple_frame_rows(tables: &Tables) -> usize {
    use fallible_iterator::FallibleIterator as _;
    let table =
        simple_frame_rs::v2::SFrameSection::from(&tables.sframe_v2, tables.sframe_addr).unwrap();
    let mut fdes = table.iter_fde();
    let mut rows = 0;
    while let Some(fde) = fdes.next().unwrap() {
        rows += fde.iter_fre(&table).count().unwrap();
    }
    rows
}
