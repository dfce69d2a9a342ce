//! Any call frame information becomes a valid table, and wherever gimli finds a
//! row that a table can say, the table has the same.

use gimli::{CieOrFde, RegisterRule, RunTimeEndian, UnwindContextStorage, UnwindSection};
use sframe::{Abi, Builder, CfiSection, Format, Table};
use unwind_core::Row;

use crate::{
    gimli_rows::{registers, translate},
    input::Input,
};

const ADDR: u64 = 0x10_0000;
const ABIS: [Abi; 4] = [Abi::Amd64Little, Abi::Aarch64Little, Abi::Aarch64Big, Abi::S390xBig];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let abi = ABIS[input.below(ABIS.len())];
    let bytes = input.rest();
    let mut builder = Builder::new(Format::V3, abi).unwrap();
    let mut lost = Vec::new();
    let report = builder
        .add_cfi(CfiSection::eh_frame(bytes, ADDR), |range| {
            assert!(range.entry <= bytes.len() as u64, "{range}");
            lost.push((range.start, range.size));
        })
        .expect("there is memory");
    assert!(report.unusable <= report.fdes && report.fdes <= bytes.len() as u64 / 4 + 1);
    let table = builder.finish(ADDR, |range| lost.push((range.start, range.size))).unwrap();
    let section = Table::parse(&table).expect("what is written is valid").at(ADDR);
    section.check().expect("what is written is valid");

    let fdes = gimli_fdes(abi, bytes);
    for fde in &fdes {
        let covering =
            |pc: u64| fdes.iter().filter(|fde| (fde.start..fde.end).contains(&pc)).count();
        for &(from, to, row) in &fde.rows {
            for pc in [from, from + (to - from) / 2, to - 1] {
                let found = section.find(pc).unwrap().map(|found| found.row().unwrap());
                let is_lost = lost.iter().any(|&(start, size)| pc.wrapping_sub(start) < size);
                // Of an entry that cannot be used the range is not known.
                let is_lost = is_lost || report.unusable != 0;
                match row {
                    // Two of them may be about the same code.
                    _ if covering(pc) != 1 => {}
                    Some(row) => assert!(
                        found == Some(row) || (found.is_none() && is_lost),
                        "at {pc:#x}: {found:?}, gimli {row:?}"
                    ),
                    None => assert!(found.is_some() || is_lost, "at {pc:#x}"),
                }
            }
        }
    }
}

/// Room for as many remembered states as are compared.
struct Deep;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Deep {
    type Rules = [(gimli::Register, RegisterRule<T>); 64];
    type Stack = Box<[gimli::UnwindTableRow<T, Self>; 16]>;
}

type Reader<'a> = gimli::EndianSlice<'a, RunTimeEndian>;

/// An entry that gimli reads to its end.
struct Fde {
    start: u64,
    end: u64,
    /// From, to, and what a table can say.
    rows: Vec<(u64, u64, Option<Row>)>,
}

fn gimli_fdes(abi: Abi, bytes: &[u8]) -> Vec<Fde> {
    let endian = match abi.endian() {
        Some(sframe::Endian::Big) => RunTimeEndian::Big,
        _ => RunTimeEndian::Little,
    };
    let mut section = gimli::EhFrame::from(Reader::new(bytes, endian));
    section.set_address_size(8);
    if matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little) {
        section.set_vendor(gimli::Vendor::AArch64);
    }
    let bases = gimli::BaseAddresses::default().set_eh_frame(ADDR);
    let mut context = gimli::UnwindContext::<usize, Deep>::new_in();
    let mut fdes = Vec::new();
    let mut entries = section.entries(&bases);
    // A section that gimli does not read to its end is not compared: later
    // entries may be about the same code.
    loop {
        let partial = match entries.next() {
            Ok(Some(CieOrFde::Fde(partial))) => partial,
            Ok(Some(CieOrFde::Cie(_))) => continue,
            Ok(None) => return fdes,
            Err(_) => return Vec::new(),
        };
        let Ok(fde) = partial.parse(UnwindSection::cie_from_offset) else { return Vec::new() };
        let (start, Some(end)) =
            (fde.initial_address(), fde.initial_address().checked_add(fde.len()))
        else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        let mut whole = false;
        // In another column the return address is another register's.
        let column = fde.cie().return_address_register().0;
        if fde.len() <= u64::from(u32::MAX)
            && column == u16::from(registers(abi).2)
            && let Ok(mut table) = fde.rows(&section, &bases, &mut context)
        {
            while let Ok(row) = table.next_row() {
                let Some(row) = row else {
                    whole = true;
                    break;
                };
                let (from, to) = (row.start_address(), row.end_address().min(end));
                if (start..end).contains(&from) && from < to {
                    let is_signal = fde.is_signal_trampoline();
                    let marked = |row: Row| match is_signal && !row.is_outermost() {
                        true => row.with_signal(),
                        false => row,
                    };
                    rows.push((from, to, translate(abi, row).map(marked)));
                }
            }
        }
        if !whole {
            rows.clear();
        }
        fdes.push(Fde { start, end, rows });
    }
}
