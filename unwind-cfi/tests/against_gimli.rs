//! Rows lead where gimli's rows lead, in files and in random call frame information.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod gimli_files;
mod gimli_frames;

use gimli::{CieOrFde, RunTimeEndian, UnwindSection as _};
use gimli_files::compare;
use gimli_frames::{Caller, Deep, Machine, Reader};
use proptest::{collection::vec, prelude::*, sample::select};
use test_support::Compiler;
use testdata::{CfiBuilder, Cie};
use unwind_cfi::{CfiAbi, CfiSection, CfiTable, Entries, IndexEntry, index};
use unwind_core::{FrameContext, FramePc, Registers as _, VirtAddr};

/// At least `least` places are compared, none of which differs.
fn check(bytes: &[u8], least: u64) {
    let comparison = compare(bytes, 2000).unwrap();
    assert_eq!(comparison.differ, Vec::<String>::new());
    assert_eq!(comparison.more, 0, "{comparison:?}");
    assert!(comparison.same >= least, "{comparison:?}");
    assert!(comparison.saved >= least / 2, "{comparison:?}");
    let unsaid: u64 = comparison.unsaid.values().sum();
    assert!(unsaid * 1000 < comparison.same, "{comparison:?}");
}

#[test]
fn rows_of_this_program_lead_where_gimlis_do() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    check(&bytes, 20_000);
}

#[test]
fn rows_of_the_c_library_lead_where_gimlis_do() {
    for flags in [&["-static"][..], &["-static", "-m32"]] {
        let Some(compiler) = Compiler::find(flags) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let source = folder.path().join("program.c");
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        compiler.compile(&source, &program, flags);
        // Without a search table, as a static program has.
        check(&std::fs::read(program).unwrap(), 5_000);
    }
}

fn leb(mut value: u64) -> Vec<u8> {
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

fn with(opcode: u8, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![opcode];
    bytes.extend(numbers.iter().flat_map(|&number| leb(number)));
    bytes
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..64, 2 => 0_u64..0x2_0000]
}

fn register(abi: CfiAbi) -> impl Strategy<Value = u64> {
    let (sp, fp, ra) = Machine { abi, pc: 0, seed: 0, bits: u64::MAX }.numbers();
    let known = [fp, fp, fp, ra, ra, sp].map(u64::from).to_vec();
    prop_oneof![6 => select(known), 2 => 0_u64..8]
}

/// An expression of registers, sums and words of memory.
fn expression() -> impl Strategy<Value = Vec<u8>> {
    let operation = prop_oneof![
        3 => (0_u8..8, 0_u8..64).prop_map(|(register, offset)| vec![0x70 + register, offset]),
        2 => (0_u8..32).prop_map(|value| vec![0x30 + value]),
        3 => Just(vec![0x22]),
        1 => Just(vec![0x1c]),
        3 => Just(vec![0x06]),
        2 => (0_u64..300).prop_map(|value| with(0x23, &[value])),
        1 => Just(vec![0x96]),
    ];
    vec(operation, 1..5).prop_map(|operations| {
        let bytes = operations.concat();
        [leb(u64::try_from(bytes.len()).unwrap()), bytes].concat()
    })
}

fn instruction(abi: CfiAbi) -> impl Strategy<Value = Vec<u8>> {
    let two = move || (register(abi), number());
    prop_oneof![
        8 => (0_u8..8).prop_map(|delta| vec![0x40 | delta]),
        1 => any::<u8>().prop_map(|delta| vec![0x02, delta]),
        6 => (0_u8..10, number()).prop_map(move |(register, n)| with(0x80 | register, &[n])),
        3 => two().prop_map(move |(register, n)| with(0x05, &[register, n])),
        3 => (0_u8..10).prop_map(|register| vec![0xc0 | register]),
        1 => register(abi).prop_map(move |register| with(0x07, &[register])),
        1 => register(abi).prop_map(move |register| with(0x08, &[register])),
        2 => (register(abi), register(abi)).prop_map(move |(a, b)| with(0x09, &[a, b])),
        3 => Just(vec![0x0a]),
        3 => Just(vec![0x0b]),
        4 => two().prop_map(move |(register, n)| with(0x0c, &[register, n])),
        3 => register(abi).prop_map(move |register| with(0x0d, &[register])),
        6 => number().prop_map(move |n| with(0x0e, &[n * 8])),
        2 => expression().prop_map(|bytes| [vec![0x0f], bytes].concat()),
        2 => (register(abi), expression())
            .prop_map(|(register, bytes)| [with(0x10, &[register]), bytes].concat()),
        2 => two().prop_map(move |(register, n)| with(0x14, &[register, n])),
        1 => (register(abi), expression())
            .prop_map(|(register, bytes)| [with(0x16, &[register]), bytes].concat()),
        1 => Just(vec![0x00]),
    ]
}

#[derive(Clone, Debug)]
struct Cfi {
    abi: CfiAbi,
    fdes: Vec<(u64, Vec<Vec<u8>>)>,
}

fn cfi() -> impl Strategy<Value = Cfi> {
    select(vec![CfiAbi::X86_64, CfiAbi::Ia32]).prop_flat_map(|abi| {
        vec((1_u64..0x100, vec(instruction(abi), 0..24)), 1..5)
            .prop_map(move |fdes| Cfi { abi, fdes })
    })
}

const ADDR: u64 = 0x10_0000;

/// Holds what rules come to in frames against gimli: in one whose values are anywhere, and in one
/// where they are near each other.
fn in_frames(
    table: &CfiTable<'_>,
    machine: Machine,
    follow: impl Fn(Machine) -> Option<Caller>,
) -> Result<(), TestCaseError> {
    for bits in [u64::MAX, 0x3fff_fff8] {
        let machine = Machine { bits, ..machine };
        let pc = FramePc::Exact(VirtAddr::new(machine.pc));
        let frame = FrameContext::new(pc, machine.sp(), machine.fp(), Some(&machine));
        let Ok(Some(rules)) = table.find_frame_rules(machine.pc) else { continue };
        let found = rules.row(&frame, &mut machine.clone());
        let expected = follow(machine);
        match (&found, expected) {
            (Ok(row), Some(expected)) => {
                let ours = machine.apply(row);
                let same = ours.is_some_and(|ours| ours.agrees_with(expected));
                prop_assert!(same, "{:#x}: {row:?} {ours:x?} {expected:x?}", machine.pc);
            }
            (Ok(row), None) => prop_assert!(row.needs().is_some(), "{row:?} where gimli has none"),
            (Err(_), _) => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(800) })]

    #[test]
    fn random_rows_lead_where_gimlis_do(cfi in cfi()) {
        let mut builder = CfiBuilder::eh_frame(ADDR);
        let mut cie = Cie::amd64();
        if cfi.abi == CfiAbi::Ia32 {
            cie.ra = 8;
            cie.data_align = -4;
            cie.instructions = vec![0x0c, 4, 4, 0x88, 1];
        }
        let cie = builder.cie(&cie);
        for (index, (len, instructions)) in cfi.fdes.iter().enumerate() {
            let start = 0x1000 + 0x1000 * u64::try_from(index).unwrap();
            builder.fde(cie, start, *len, &instructions.concat());
        }
        let bytes = builder.build();
        let section = CfiSection::eh_frame(bytes, ADDR);
        let mut slots = [IndexEntry::default(); 8];
        let index = index(Entries::new(section, cfi.abi), &mut slots).unwrap();
        let table = CfiTable::with_index(section, cfi.abi, index);

        let mut gimli_section = gimli::EhFrame::from(Reader::new(bytes, RunTimeEndian::Little));
        gimli_section.set_address_size(cfi.abi.address_size());
        let bases = gimli::BaseAddresses::default().set_eh_frame(ADDR);
        let mut context = gimli::UnwindContext::<usize, Deep>::new_in();
        let mut entries = gimli_section.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(gimli::EhFrame::cie_from_offset).unwrap();
            let ra = fde.cie().return_address_register().0;
            let mut reached = fde.initial_address();
            let mut rows = fde.rows(&gimli_section, &bases, &mut context).unwrap();
            while let Ok(Some(row)) = rows.next_row() {
                let end = row.end_address().min(fde.initial_address() + fde.len());
                for pc in row.start_address()..end {
                    let machine = Machine { abi: cfi.abi, pc, seed: pc * 0x1234_5677, bits: u64::MAX };
                    let expected = machine.follow(&gimli_section, row, ra);
                    let found = table.find_row(pc);
                    match (&found, expected) {
                        // Two rules for one thing: no row says so.
                        (Err(error), _) if !error.is_fault() => {
                            in_frames(&table, machine, |machine| {
                                machine.follow(&gimli_section, row, ra)
                            })?;
                        }
                        (Ok(Some(row)), Some(expected)) => {
                            let ours = machine.apply(row);
                            let same = ours.is_some_and(|ours| ours.agrees_with(expected));
                            prop_assert!(same, "{pc:#x}: {found:?} {ours:x?} {expected:x?}");
                        }
                        (Ok(Some(row)), None) => {
                            prop_assert!(false, "{pc:#x}: {row:?} where gimli has none");
                        }
                        _ => prop_assert!(false, "{pc:#x}: {found:?} against {expected:x?}"),
                    }
                }
                reached = reached.max(end);
            }
            // What gimli could not run is an error here, too.
            for pc in reached..fde.initial_address() + fde.len() {
                let found = table.find_row(pc);
                prop_assert!(found.is_err(), "{pc:#x}: {found:?} where gimli fails");
            }
        }
    }
}
