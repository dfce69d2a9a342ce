//! Walks by the SFrame tables of several modules, and by what fills the gaps
//! between them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use testdata::{Function, Row as Fre, TableBuilder};
use unwind_core::{
    End, Frame, FrameContext, FramePc, KeyedRange, Module, ModuleMap, Origin, RowCache, RowKeys,
    RowSource, SliceMemory, StepError, VirtAddr, Walker,
};
use unwind_x86::{
    FramePointers, InstructionAnalysis, SframeModule, SframeSource, X86_64, X86_64Regs,
};

const SORTED: u8 = TableBuilder::SORTED;

/// A table of two functions at 0x1000 and 0x1100 above the section: one with
/// 16 bytes of locals, one whose caller is not known (V3 and V2).
fn library(version: u8) -> Vec<u8> {
    let mut section = TableBuilder::amd64(version)
        .function(Function::new(0x1000, 0x80, vec![Fre::sp(0, &[8]), Fre::sp(4, &[24])]))
        .function(Function::new(0x1100, 0x80, vec![Fre::new(0, 0, &[])]));
    section.flags = SORTED;
    section.build()
}

fn module<'a>(bytes: &'a [u8], load: u64) -> Module<SframeModule<'a>> {
    let table = SframeModule::new(bytes, load).unwrap().unwrap();
    let text = VirtAddr::new(load + 0x1000)..VirtAddr::new(load + 0x2000);
    Module { text, table }
}

fn walk<S: RowSource<X86_64, Error = sframe::Error>>(
    source: S,
    pc: u64,
    stack: &[u64],
) -> (Vec<Frame>, End<sframe::Error>, u32) {
    let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut memory = SliceMemory::new(VirtAddr::new(0x7000), &bytes);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
    let mut frames = walker.frames(X86_64Regs::new(pc, 0x7000, 0x7010), &mut memory);
    let seen: Vec<_> = frames.by_ref().collect();
    (seen, frames.end().unwrap(), frames.table_errors())
}

fn pcs(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.pc.addr().get()).collect()
}

#[test]
fn a_walk_crosses_modules_each_with_its_own_load_address() {
    for version in [1, 2, 3] {
        let bytes = library(version);
        let mut map = ModuleMap::<_, 4>::new();
        map.add(module(&bytes, 0x40_0000)).unwrap();
        map.add(module(&bytes, 0x7f00_0000_0000)).unwrap();
        // In the first module after its locals, from the second one.
        let stack = [0, 0, 0x7f00_0000_1010, 0, 0, 0x40_1004, 0];
        let (frames, end, _) = walk(SframeSource::new(&map), 0x40_1010, &stack);
        assert_eq!(pcs(&frames), [0x40_1010, 0x7f00_0000_1010, 0x40_1004], "V{version}");
        // Looked up one byte back, the third frame is before its locals.
        assert_eq!((frames[2].cfa, end), (Some(0x7038), End::ZeroReturnAddress));
        assert!(frames[1..].iter().all(|frame| frame.provenance.origin() == Origin::Table));
    }
}

#[test]
fn f19_an_outermost_frame_ends_the_walk_as_complete() {
    for version in [2, 3] {
        let bytes = library(version);
        let mut map = ModuleMap::<_, 4>::new();
        map.add(module(&bytes, 0x40_0000)).unwrap();
        let (frames, end, errors) = walk(SframeSource::new(&map), 0x40_1100, &[]);
        assert_eq!((frames.len(), end, errors), (1, End::Outermost, 0), "V{version}");
    }
}

#[test]
fn f24_code_outside_all_modules_and_functions_falls_to_the_frame_pointer_alone() {
    let bytes = library(3);
    let mut map = ModuleMap::<_, 4>::new();
    map.add(module(&bytes, 0x40_0000)).unwrap();
    // JIT code, a gap between the two functions, then a function again.
    let stack = [0, 0, 0x7020, 0x40_10c0, 0x7030, 0x40_1010, 0, 0, 0];
    let (frames, end, errors) = walk(SframeSource::new(&map), 0x9_0000, &stack);
    assert_eq!(pcs(&frames), [0x9_0000, 0x40_10c0, 0x40_1010]);
    let origins: Vec<_> = frames.iter().map(|frame| frame.provenance.origin()).collect();
    assert_eq!(origins, [Origin::Registers, Origin::FramePointer, Origin::FramePointer]);
    // A gap is no error: nothing failed, and the table is still in use.
    let zero = StepError::ZeroReturnAddress { cfa: 0x7048 };
    assert_eq!((end, errors), (End::Step(zero), 0));
    assert!(frames.iter().all(|frame| !frame.provenance.is_after_failure()));
}

#[test]
fn one_bad_function_does_not_harm_its_neighbours() {
    // The first function is made of blocks of no size.
    let mut section = TableBuilder::amd64(3)
        .function(Function::new(0x1000, 0x80, vec![Fre::sp(0, &[8])]).blocks(0))
        .function(Function::new(0x1100, 0x80, vec![Fre::sp(0, &[24])]));
    section.flags = SORTED;
    let bytes = section.build();
    let mut map = ModuleMap::<_, 4>::new();
    map.add(module(&bytes, 0x40_0000)).unwrap();
    let stack = [0, 0, 0x7020, 0x40_1110, 0, 0, 0];
    let (frames, end, errors) = walk(SframeSource::new(&map), 0x40_1010, &stack);
    assert_eq!((pcs(&frames), errors), (vec![0x40_1010, 0x40_1110], 1));
    assert!(frames[1].provenance.is_after_failure());
    let zero = StepError::ZeroReturnAddress { cfa: 0x7038 };
    assert_eq!(end, End::Step(zero), "by the second function's row");
    // Without a fallback the error itself is the end.
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(&map));
    let mut memory = SliceMemory::new(VirtAddr::new(0x7000), &[]);
    let mut frames = walker.frames(X86_64Regs::new(0x40_1010, 0x7000, 0), &mut memory);
    assert_eq!(frames.by_ref().count(), 1);
    assert!(matches!(frames.end(), Some(End::Table(sframe::Error::ZeroRepSize(_)))));
}

#[test]
fn tables_joined_one_after_another_are_all_searched() {
    let mut bytes = library(2);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let second_at = i64::try_from(bytes.len()).unwrap();
    // Starts count from their own table.
    let mut second = TableBuilder::amd64(2).function(Function::new(
        0x1200 - second_at,
        0x80,
        vec![Fre::sp(0, &[8])],
    ));
    second.flags = SORTED;
    bytes.extend(second.build());
    let mut map = ModuleMap::<_, 4>::new();
    map.add(module(&bytes, 0x40_0000)).unwrap();
    let (frames, end, _) = walk(SframeSource::new(&map), 0x40_1210, &[0x40_1001, 0]);
    assert_eq!((pcs(&frames), end), (vec![0x40_1210, 0x40_1001], End::ZeroReturnAddress));
    assert_eq!(frames[1].provenance.origin(), Origin::Table);
}

#[test]
fn no_bytes_and_tables_of_other_cpus_are_no_tables() {
    assert!(SframeModule::new(&[], 0).unwrap().is_none());
    let foreign = TableBuilder::aarch64(3, false).build();
    assert!(SframeModule::new(&foreign, 0).unwrap().is_none());
    assert_eq!(SframeModule::new(&[0xe2], 0).err(), SframeModule::new(&[0xe2], 9).err());
    assert!(SframeModule::new(&[0xe2], 0).is_err());
}

#[test]
fn a_built_table_says_so_in_every_frame_that_it_finds() {
    let bytes = library(3);
    let mut map = ModuleMap::<_, 4>::new();
    let mut built = module(&bytes, 0x40_0000);
    built.table = built.table.built();
    map.add(built).unwrap();
    let (frames, ..) = walk(SframeSource::new(&map), 0x40_1000, &[0x40_1104]);
    assert_eq!(frames[1].provenance.origin(), Origin::CallFrames);
}

#[test]
fn flexible_rows_of_a_realigned_frame_are_walked_from_the_first_frame() {
    // CFA = *(rbp - 8), the caller's rbp at *(rbp + 0): DRAP code.
    let rules = [0x33, -8, 0, 0x33, 0];
    let mut section = TableBuilder::amd64(3)
        .function(Function::new(0x1000, 0x80, vec![Fre::new(0, 0, &rules)]).flexible());
    section.flags = SORTED;
    let bytes = section.build();
    let mut map = ModuleMap::<_, 4>::new();
    map.add(module(&bytes, 0x40_0000)).unwrap();
    // rbp = 0x7010: the CFA is at 0x7008, the saved rbp at 0x7010.
    let stack = [0, 0x7030, 0x7040, 0, 0, 0x40_1004, 0, 0, 0x7058, 0x40_1004, 0x30];
    let (frames, end, _) = walk(SframeSource::new(&map), 0x40_1000, &stack);
    assert_eq!(pcs(&frames), [0x40_1000, 0x40_1004, 0x40_1004]);
    assert_eq!(frames[0].cfa, Some(0x7030));
    // The second frame's rbp is 0x7040 and the word below that is no CFA, so
    // the fallback takes over.
    assert!(frames[2].provenance.is_after_failure());
    assert_eq!(end, End::Step(StepError::NoProgress { cfa: 0x30, sp: 0x7050 }));
}

#[test]
fn a_cache_in_front_changes_no_frame_and_sees_modules_come_and_go() {
    let (bytes, other) = (library(3), {
        let rows = vec![Fre::sp(0, &[16])];
        let mut section = TableBuilder::amd64(3).function(Function::new(0x1000, 0x800, rows));
        section.flags = SORTED;
        section.build()
    });
    let mut cache = RowCache::<64>::new();
    let mut map = ModuleMap::<_, 4>::new();
    let stack = [0x40_1001, 0x40_1010, 0x40_1001, 0x40_1001, 0, 0, 0];
    for round in 0..4 {
        map.clear();
        let table = if round % 2 == 0 { &bytes } else { &other };
        map.add(module(table, 0x40_0000)).unwrap();
        let (plain, end, _) = walk(SframeSource::new(&map), 0x40_1000, &stack);
        for _ in 0..2 {
            let bytes: Vec<u8> = stack.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            let mut memory = SliceMemory::new(VirtAddr::new(0x7000), &bytes);
            let walker = Walker::new(X86_64::FOUR_LEVEL, SframeSource::new(&map));
            let mut walker = walker.cache(&mut cache).fallback(FramePointers);
            let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7010);
            let mut walked = walker.frames(regs, &mut memory);
            let frames: Vec<_> = walked.by_ref().collect();
            assert_eq!((frames, walked.end()), (plain.clone(), Some(end)), "round {round}");
        }
    }
    assert!(cache.stats().hits > 0);
}

#[test]
fn an_index_changes_no_row_in_as_much_memory_as_there_is() {
    for version in [1, 2, 3] {
        let bytes = library(version);
        let needed = module(&bytes, 0x40_0000).table.index_len();
        assert!(needed > 0);
        for len in 0..=needed + 1 {
            let mut memory = vec![0; len];
            let mut maps = [(); 2].map(|()| ModuleMap::<_, 4>::new());
            let plain = module(&bytes, 0x40_0000);
            let table = plain.table.clone().with_id(7).index(&mut memory);
            maps[0].add(Module { text: plain.text.clone(), table }).unwrap();
            maps[1].add(plain).unwrap();
            let [mut indexed, mut plain] = maps.each_ref().map(SframeSource::new);
            let mut nothing = SliceMemory::new(VirtAddr::new(0), &[]);
            let mut rows = 0;
            for addr in (0x40_0ff0..0x40_1200).map(VirtAddr::new) {
                let mut row = |source: &mut SframeSource<'_, '_, 4>| {
                    let frame = FrameContext::new(FramePc::Exact(addr), 0, None, None);
                    source.row(&frame, &mut nothing)
                };
                let found = row(&mut indexed);
                rows += usize::from(matches!(found, Ok(Some(_))));
                assert_eq!(found, row(&mut plain), "{addr}");
            }
            // Version 1 cannot say that a caller is not known.
            assert_eq!(rows, if version == 1 { 0x80 } else { 0x100 });
            let key = RowSource::<X86_64>::row_key(&indexed, VirtAddr::new(0x40_1010));
            assert_eq!(key.map(|key| key.table), Some(7));
        }
    }
}

#[test]
fn a_row_has_the_same_key_wherever_its_table_is_loaded_and_no_other_row_has_it() {
    let (ours, theirs) = (library(3), library(2));
    let loads = [0x40_0000, 0x7f00_0000_0000];
    let maps = loads.map(|load| {
        let mut map = ModuleMap::<_, 4>::new();
        for (bytes, id, load) in [(&ours, 7, load), (&theirs, 8, load + 0x10_0000)] {
            let mut module = module(bytes, load);
            module.table = module.table.with_id(id);
            map.add(module).unwrap();
        }
        map.add(module(&ours, load + 0x20_0000)).unwrap();
        map
    });
    let [mut first, mut second] = maps.each_ref().map(SframeSource::new);
    let mut keys = std::collections::BTreeSet::new();
    let mut nothing = SliceMemory::new(VirtAddr::new(0), &[]);
    for (number, start) in [(7, 0x1000), (8, 0x10_1000)] {
        for offset in 0..0x200 {
            let [here, there] = loads.map(|load| VirtAddr::new(load + start + offset));
            let key = RowSource::<X86_64>::row_key(&first, here);
            assert_eq!(key, RowSource::<X86_64>::row_key(&(&mut second), there));
            assert!(keys.insert(key.unwrap()) && key.unwrap().table == number);
            let mut row = |source: &mut SframeSource<'_, '_, 4>, addr| {
                source.row(&FrameContext::new(FramePc::Exact(addr), 0, None, None), &mut nothing)
            };
            assert_eq!(row(&mut first, here), row(&mut second, there), "{offset:#x}");
        }
    }
    // The keys of a module are one range.
    let within = VirtAddr::new(0x40_0000 + 0x1080);
    let text = VirtAddr::new(0x40_0000 + 0x1000)..VirtAddr::new(0x40_0000 + 0x2000);
    let key = RowSource::<X86_64>::row_key(&first, text.start).unwrap();
    assert_eq!(first.find(within), Some(KeyedRange { text, key }));
    // One without a number, and no module at all.
    for addr in [0x40_0000 + 0x20_1000, 0x1000] {
        assert_eq!(RowSource::<X86_64>::row_key(&first, VirtAddr::new(addr)), None);
        assert_eq!(first.find(VirtAddr::new(addr)), None);
    }
    // Joined with a source whose rows are all the same, and with one that looks at the code.
    let addr = VirtAddr::new(0x40_1000);
    let joined = RowSource::<X86_64>::or(first, FramePointers);
    assert_eq!(RowSource::<X86_64>::row_key(&joined, addr), first.row_key(addr));
    let joined = RowSource::<X86_64>::or(first, InstructionAnalysis);
    assert_eq!(RowSource::<X86_64>::row_key(&joined, addr), None);
}
