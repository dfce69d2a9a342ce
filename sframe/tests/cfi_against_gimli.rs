//! Tables from random call frame information say what gimli's rows say, and
//! damaged information harms nothing.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod gimli_rows;

use gimli::{CieOrFde, RegisterRule, RunTimeEndian, UnwindContextStorage, UnwindSection};
use gimli_rows::{registers, translate};
use proptest::{collection::vec, prelude::*, sample::select};
use sframe::{Abi, Builder, CfiOmission, CfiSection, Format, Table};
use testdata::{CfiBuilder, Cie};
use unwind_core::Row;

const ADDR: u64 = 0x10_0000;
const ABIS: [Abi; 4] = [Abi::Aarch64Big, Abi::Aarch64Little, Abi::Amd64Little, Abi::S390xBig];

/// Room for as many remembered states as the test nests.
struct Deep;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Deep {
    type Rules = [(gimli::Register, RegisterRule<T>); 64];
    type Stack = Box<[gimli::UnwindTableRow<T, Self>; 40]>;
}

type Reader<'a> = gimli::EndianSlice<'a, RunTimeEndian>;

fn leb(value: u64) -> Vec<u8> {
    let mut value = value;
    let mut bytes = Vec::new();
    loop {
        let byte = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        if value == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..64, 2 => 0_u64..0x2_0000, 1 => any::<u64>().prop_map(|n| n >> 1)]
}

fn register(abi: Abi) -> impl Strategy<Value = u64> {
    let (sp, fp, ra) = registers(abi);
    let known = [fp, fp, fp, ra, ra, sp].map(u64::from).to_vec();
    prop_oneof![6 => select(known), 2 => 0_u64..20, 1 => select(vec![34, 253, 254, 511])]
}

/// One instruction. Signed numbers are small, so that their LEB is simple.
fn instruction(abi: Abi) -> impl Strategy<Value = Vec<u8>> {
    let with = |opcode: u8, numbers: &[u64]| {
        let mut bytes = vec![opcode];
        bytes.extend(numbers.iter().flat_map(|&number| leb(number)));
        bytes
    };
    let two = move || (register(abi), number());
    prop_oneof![
        8 => (0_u8..8).prop_map(|delta| vec![0x40 | delta]),
        1 => any::<u8>().prop_map(|delta| vec![0x02, delta]),
        4 => (0_u8..64, number()).prop_map(move |(register, n)| with(0x80 | register, &[n])),
        3 => two().prop_map(move |(register, n)| with(0x05, &[register, n])),
        3 => (0_u8..64).prop_map(|register| vec![0xc0 | register]),
        3 => register(abi).prop_map(move |register| with(0x06, &[register])),
        1 => register(abi).prop_map(move |register| with(0x07, &[register])),
        1 => register(abi).prop_map(move |register| with(0x08, &[register])),
        2 => (register(abi), register(abi)).prop_map(move |(a, b)| with(0x09, &[a, b])),
        3 => Just(vec![0x0a]),
        3 => Just(vec![0x0b]),
        4 => two().prop_map(move |(register, n)| with(0x0c, &[register, n])),
        3 => register(abi).prop_map(move |register| with(0x0d, &[register])),
        6 => number().prop_map(move |n| with(0x0e, &[n.wrapping_mul(8)])),
        1 => (register(abi), 0_u64..64).prop_map(move |(a, n)| with(0x11, &[a, n])),
        1 => (register(abi), 0_u64..64).prop_map(move |(a, n)| with(0x12, &[a, n])),
        1 => (0_u64..64).prop_map(move |n| with(0x13, &[n])),
        2 => two().prop_map(move |(register, n)| with(0x14, &[register, n])),
        1 => (register(abi), 0_u64..64).prop_map(move |(a, n)| with(0x15, &[a, n])),
        1 => number().prop_map(move |n| with(0x2e, &[n])),
        1 => Just(vec![0x2d]),
        1 => Just(vec![0x00]),
    ]
}

#[derive(Clone, Debug)]
struct Cfi {
    abi: Abi,
    /// Instructions of the CIE and of each FDE.
    cie: Vec<Vec<u8>>,
    fdes: Vec<(u64, Vec<Vec<u8>>)>,
}

fn table() -> impl Strategy<Value = Cfi> {
    select(ABIS.to_vec()).prop_flat_map(|abi| {
        let fde = (1_u64..0x100, vec(instruction(abi), 0..24));
        let cie = prop_oneof![4 => Just(Vec::new()), 1 => vec(instruction(abi), 0..4)];
        (cie, vec(fde, 1..5)).prop_map(move |(cie, fdes)| Cfi { abi, cie, fdes })
    })
}

fn build(table: &Cfi) -> CfiBuilder {
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    cfi.big = table.abi.endian() == Some(sframe::Endian::Big);
    let mut cie = match table.abi {
        Abi::Amd64Little => Cie::amd64(),
        Abi::S390xBig => Cie::s390x(),
        _ => Cie::aarch64(),
    };
    cie.instructions.extend(table.cie.concat());
    let cie = cfi.cie(&cie);
    for (index, (len, instructions)) in table.fdes.iter().enumerate() {
        let start = 0x1000 + 0x1000 * u64::try_from(index).unwrap();
        cfi.fde(cie, start, *len, &instructions.concat());
    }
    cfi
}

fn convert(abi: Abi, bytes: &[u8]) -> (Vec<u8>, Vec<CfiOmission>) {
    let mut builder = Builder::new(Format::V3, abi).unwrap();
    let mut lost = Vec::new();
    builder.add_cfi(CfiSection::eh_frame(bytes, ADDR), |range| lost.push(range)).unwrap();
    (builder.finish(ADDR, |_| {}).unwrap(), lost)
}

/// Each FDE's range, and its rows as far as gimli can tell.
type Rows = Vec<(u64, u64, Vec<(u64, u64, Option<Row>)>)>;

fn gimli_rows(abi: Abi, bytes: &[u8]) -> Rows {
    let endian = match abi.endian() {
        Some(sframe::Endian::Big) => RunTimeEndian::Big,
        _ => RunTimeEndian::Little,
    };
    let mut section = gimli::EhFrame::from(Reader::new(bytes, endian));
    if matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little) {
        section.set_vendor(gimli::Vendor::AArch64);
    }
    let bases = gimli::BaseAddresses::default().set_eh_frame(ADDR);
    let mut context = gimli::UnwindContext::<usize, Deep>::new_in();
    let mut fdes = Vec::new();
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(UnwindSection::cie_from_offset) else { continue };
        let mut rows = Vec::new();
        if let Ok(mut table) = fde.rows(&section, &bases, &mut context) {
            while let Ok(Some(row)) = table.next_row() {
                rows.push((row.start_address(), row.end_address(), translate(abi, row)));
            }
        }
        fdes.push((fde.initial_address(), fde.end_address(), rows));
    }
    fdes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_the_one_that_gimli_finds(table in table()) {
        let cfi = build(&table);
        let (bytes, lost) = convert(table.abi, cfi.build());
        let section = Table::parse(&bytes).unwrap().at(ADDR);
        let mut compared = 0;
        for (start, end, rows) in gimli_rows(table.abi, cfi.build()) {
            for pc in start..end {
                let expected = rows
                    .iter()
                    .find(|&&(from, to, _)| (from..to.min(end)).contains(&pc))
                    .and_then(|&(.., row)| row);
                let found = section.find(pc).unwrap().map(|found| found.row().unwrap());
                prop_assert_eq!(found, expected, "at {:#x}", pc);
                let is_lost = lost.iter().any(|lost| pc.wrapping_sub(lost.start) < lost.size);
                prop_assert!(found.is_some() || is_lost || rows.is_empty(), "at {pc:#x}");
                prop_assert!(found.is_none() || !is_lost, "at {pc:#x}");
                compared += 1;
            }
        }
        prop_assert!(compared > 0);
    }

    #[test]
    fn damaged_information_gives_a_good_table(
        table in table(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = build(&table).build().to_vec();
        for (at, byte) in damage {
            let len = bytes.len();
            bytes[at.index(len)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let (built, _) = convert(table.abi, &bytes);
        let section = Table::parse(&built).unwrap().at(ADDR);
        let mut end = i64::MIN;
        for fde in section.fdes().map(Result::unwrap) {
            // Ascending by distance, and none on another: the search relies on
            // it.
            let start = fde.range.start.wrapping_sub(ADDR).cast_signed();
            prop_assert!(start >= end);
            end = start.saturating_add(fde.range.size.into());
            for fre in section.fres(&fde).unwrap() {
                prop_assert!(fde.row(&fre.unwrap()).is_ok());
            }
        }
    }
}
