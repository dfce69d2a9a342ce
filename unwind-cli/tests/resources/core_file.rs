//! Core files whose notes, segments and lists of files are many, or share their
//! bytes.

use std::path::Path;

use testdata::{ElfBuilder, ElfSegment, files_note, thread_note};

use crate::elf::size_of;
use crate::support::resources::{Bounds, Run, input_file, stays_linear};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000_0000;

fn stack(path: &Path, core: &ElfBuilder) -> Run {
    Run::of_file(path, &core.finish(), &["stack", "--core", "FILE"])
}

fn add_notes(core: &mut ElfBuilder, notes: &[u8]) -> ElfSegment {
    let (offset, file_size) = (core.put(notes), size_of(notes));
    let segment =
        ElfSegment { kind: PT_NOTE, offset, file_size, align: 4, ..ElfSegment::default() };
    core.segments.push(segment);
    segment
}

fn add_memory(core: &mut ElfBuilder, addr: u64, flags: u32, bytes: &[u8]) {
    let (offset, file_size) = (core.put(bytes), size_of(bytes));
    let (kind, memory_size, align) = (PT_LOAD, file_size, 4096);
    let segment = ElfSegment { kind, flags, offset, addr, file_size, memory_size, align };
    core.segments.push(segment);
}

/// A chain of `frames` frame pointers, with return addresses in the code.
fn add_chain(core: &mut ElfBuilder, frames: usize) {
    let mut chain = Vec::new();
    for (_, at) in (0..frames).zip((STACK..).step_by(16)) {
        chain.extend((at + 16).to_le_bytes());
        chain.extend((CODE + 0x100).to_le_bytes());
    }
    add_memory(core, STACK, 6, &chain);
    add_memory(core, CODE, 5, &[0xcc; 4096]);
}

#[test]
fn c7_a_list_of_files_is_matched_with_the_segments_in_proportion() {
    let path = input_file("c7_files_by_segments");
    stays_linear("stack --core", "files by segments", Bounds::USUAL, |times| {
        let mut core = ElfBuilder::new(ElfBuilder::CORE);
        let ranges: Vec<_> =
            (0..4000 * times).zip((CODE..).step_by(8192)).map(|(_, start)| start).collect();
        let files: Vec<_> =
            ranges.iter().map(|&start| (start, start + 4096, 0, &b"/none"[..])).collect();
        add_notes(&mut core, &[thread_note(7, CODE, 0, 0), files_note(&files)].concat());
        for &addr in &ranges {
            core.segments.push(ElfSegment {
                kind: PT_LOAD,
                flags: 5,
                addr,
                memory_size: 4096,
                ..ElfSegment::default()
            });
        }
        stack(&path, &core)
    });
}

#[test]
fn c7_code_of_files_of_many_names_costs_in_proportion() {
    let path = input_file("c7_names_of_files");
    stays_linear("stack --core", "files of many names", Bounds::USUAL, |times| {
        let mut core = ElfBuilder::new(ElfBuilder::CORE);
        let names: Vec<_> = (0..4000 * times).map(|name| format!("/none/{name}")).collect();
        let files: Vec<_> = names
            .iter()
            .zip((CODE..).step_by(8192))
            .map(|(name, start)| (start, start + 4096, 0, name.as_bytes()))
            .collect();
        add_notes(&mut core, &[thread_note(7, CODE, 0, 0), files_note(&files)].concat());
        stack(&path, &core)
    });
}

#[test]
fn c8_note_segments_that_share_notes_show_each_note_once() {
    let path = input_file("c8_shared_notes");
    stays_linear("stack --core", "segments that share notes", Bounds::USUAL, |times| {
        let mut core = ElfBuilder::new(ElfBuilder::CORE);
        let notes: Vec<_> = (1..200 * u32::try_from(times).unwrap())
            .flat_map(|id| thread_note(id, CODE, 0, 0))
            .collect();
        let segment = add_notes(&mut core, &notes);
        // Some begin at a later note.
        for skip in 0..400 * times {
            let skip = 356 * u64::try_from(skip % 100).unwrap();
            core.segments.push(ElfSegment {
                offset: segment.offset + skip,
                file_size: segment.file_size - skip,
                ..segment
            });
        }
        stack(&path, &core)
    });
}

#[test]
fn c8_threads_that_share_a_stack_show_no_more_than_the_core_has() {
    let path = input_file("c8_shared_stack");
    for arguments in [&["stack", "--core", "FILE"][..], &["stack", "--json", "--core", "FILE"]] {
        let reader =
            if arguments.contains(&"--json") { "stack --core --json" } else { "stack --core" };
        // JSON has all fields of each frame, written by a build that is not optimized.
        let bounds = Bounds { output: 128, time: 3 * Bounds::USUAL.time, ..Bounds::USUAL };
        stays_linear(reader, "threads that share a stack", bounds, |times| {
            let mut core = ElfBuilder::new(ElfBuilder::CORE);
            let threads = 1..100 * u32::try_from(times).unwrap();
            let notes: Vec<_> =
                threads.flat_map(|id| thread_note(id, CODE, STACK, STACK)).collect();
            add_notes(&mut core, &notes);
            add_chain(&mut core, 1000 * times);
            Run::of_file(&path, &core.finish(), arguments)
        });
    }
}

#[test]
fn c8_frames_in_a_file_of_a_long_name_show_no_more_than_the_core_has() {
    let path = input_file("c8_long_name");
    for arguments in [&["stack", "--core", "FILE"][..], &["stack", "--json", "--core", "FILE"]] {
        let reader =
            if arguments.contains(&"--json") { "stack --core --json" } else { "stack --core" };
        let bounds = Bounds { output: 128, ..Bounds::USUAL };
        stays_linear(reader, "frames in a file of a long name", bounds, |times| {
            let mut core = ElfBuilder::new(ElfBuilder::CORE);
            let name = format!("/{}", "n".repeat(50_000 * times));
            let thread = thread_note(7, CODE, STACK, STACK);
            let files = files_note(&[(CODE, CODE + 4096, 0, name.as_bytes())]);
            add_notes(&mut core, &[thread, files].concat());
            add_chain(&mut core, 600);
            Run::of_file(&path, &core.finish(), arguments)
        });
    }
}
