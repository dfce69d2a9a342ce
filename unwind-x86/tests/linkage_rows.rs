//! The rows of whole linkage tables, against what their instructions do to the stack and against call
//! frame information, in files of this machine; and in compact tables of them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSection};
use sframe::{CfiAbi, CfiSection, CompactBuilder, CompactTable};
use unwind_core::{CfaRule, RegRule, Row, WordSize};
use unwind_x86::LinkageRows;

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue)
}

/// The row at each instruction that runs, by the pushes before it. In the first entry of a lazy table
/// one was done by the entry that jumped to it.
fn rows_by_pushes(addr: u64, code: &[u8]) -> BTreeMap<u64, Row> {
    let mut rows = BTreeMap::new();
    let mut cfa = Some(8);
    for instruction in &mut Decoder::with_ip(64, code, addr, DecoderOptions::NONE) {
        match (instruction.mnemonic(), cfa) {
            // What pads an entry.
            (Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Xchg, _) => cfa = None,
            (mnemonic, before) => {
                let is_first = mnemonic == Mnemonic::Push && instruction.is_ip_rel_memory_operand();
                let before = before.unwrap_or(8) + if is_first { 8 } else { 0 };
                rows.insert(instruction.ip(), sp(before));
                cfa = Some(before + if mnemonic == Mnemonic::Push { 8 } else { 0 });
                // An entry continues after its first jump, with nothing pushed.
                if mnemonic == Mnemonic::Jmp {
                    cfa = None;
                }
            }
        }
    }
    rows
}

/// This test, which rustc's lld has linked, and the libraries that it has mapped, which GNU ld has.
fn files() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter_map(|line| line.split_once('/'));
    let mut files: Vec<PathBuf> = mapped.map(|(_, path)| format!("/{path}").into()).collect();
    files.push("/usr/bin/python3".into());
    files.sort();
    files.dedup();
    files
}

/// The linkage tables of a file: address and code.
fn tables(file: &object::File<'_>) -> Vec<(u64, Vec<u8>)> {
    let names = [".plt", ".plt.sec", ".plt.got"];
    let sections = names.iter().filter_map(|name| file.section_by_name(name));
    sections.map(|section| (section.address(), section.data().unwrap().to_vec())).collect()
}

fn compact_of_call_frames(file: &object::File<'_>) -> Option<CompactBuilder> {
    let section = file.section_by_name(".eh_frame")?;
    let data = section.uncompressed_data().unwrap();
    let mut builder = CompactBuilder::new();
    builder.add_cfi(CfiSection::eh_frame(&data, section.address()), CfiAbi::X86_64).unwrap();
    Some(builder)
}

/// What was compared.
#[derive(Debug, Default)]
struct Counts {
    instructions: u32,
    by_call_frames: u32,
    without_call_frames: u32,
}

fn compare(path: &Path, counts: &mut Counts) -> Option<()> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let (image, _) = compact_of_call_frames(&file)?.finish().unwrap();
    let call_frames = CompactTable::parse(&image).unwrap();
    let mut builder = compact_of_call_frames(&file)?;
    for (addr, code) in tables(&file) {
        for (range, row) in LinkageRows::new(WordSize::Eight, addr, &code) {
            builder.add(range, &row).unwrap();
        }
    }
    let (image, _) = builder.finish().unwrap();
    let compact = CompactTable::parse(&image).unwrap();
    for (addr, code) in tables(&file) {
        let rows: Vec<_> = LinkageRows::new(WordSize::Eight, addr, &code).collect();
        assert!(rows.iter().zip(&rows[1..]).all(|((a, _), (b, _))| a.end <= b.start));
        for (pc, expected) in rows_by_pushes(addr, &code) {
            let place = || format!("{} at {pc:#x}", path.display());
            let row = rows.iter().find(|(range, _)| range.contains(&pc));
            let (_, row) = row.unwrap_or_else(|| panic!("no row in {}", place()));
            assert_eq!(row.with_origin(expected.origin()), expected, "{}", place());
            assert_eq!(compact.row(pc), Some(expected), "{}", place());
            counts.instructions += 1;
            match call_frames.row(pc) {
                Some(row) => {
                    assert_eq!(row, expected, "{}", place());
                    counts.by_call_frames += 1;
                }
                None => counts.without_call_frames += 1,
            }
        }
    }
    Some(())
}

#[test]
fn a_linkage_table_of_a_file_has_the_rows_of_its_instructions_and_of_its_call_frame_information() {
    let mut counts = Counts::default();
    let compared: Vec<_> =
        files().into_iter().filter(|path| compare(path, &mut counts).is_some()).collect();
    println!("{counts:?} in {compared:?}");
    assert!(counts.instructions > 100 && counts.by_call_frames > 100, "{counts:?}");
    assert!(counts.without_call_frames > 5, "{counts:?}");
}

#[test]
fn code_that_is_no_entry_has_no_rows() {
    // push rbp; mov rbp, rsp; call; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xc9, 0xc3];
    assert_eq!(LinkageRows::new(WordSize::Eight, 0x1000, &code).count(), 0);
    assert_eq!(LinkageRows::new(WordSize::Four, 0x1000, &[]).count(), 0);
}
