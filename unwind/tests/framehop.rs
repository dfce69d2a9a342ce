//! A profiler that is written for framehop's trait finds the same frames by framehop and here.
#![cfg(test)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    unsafe_code,
    clippy::arithmetic_side_effects,
    clippy::undocumented_unsafe_blocks,
    reason = "tests"
)]

use std::arch::asm;
use std::fs;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, ExplicitModuleSectionInfo, Module, Unwinder};
use object::{Object as _, ObjectSection as _};
use unwind::framehop::{FramehopCache, FramehopModule, FramehopUnwinder};

/// A stack that was copied, and the registers there.
#[derive(Clone)]
struct Sample {
    regs: UnwindRegsX86_64,
    start: u64,
    words: Vec<u64>,
}

/// The frames, and how the walk has ended.
fn profile<U: Unwinder<UnwindRegs = UnwindRegsX86_64>>(
    unwinder: &U,
    cache: &mut U::Cache,
    sample: &Sample,
) -> (Vec<u64>, Result<(), Error>) {
    let mut read = |addr: u64| {
        let at = addr.checked_sub(sample.start).filter(|at| at % 8 == 0).ok_or(())?;
        sample.words.get(usize::try_from(at / 8).unwrap()).copied().ok_or(())
    };
    let mut frames = unwinder.iter_frames(sample.regs.ip(), sample.regs, cache, &mut read);
    let mut addresses = Vec::new();
    loop {
        match frames.next() {
            Ok(Some(frame)) => addresses.push(frame.address()),
            Ok(None) => return (addresses, Ok(())),
            Err(error) => return (addresses, Err(error)),
        }
    }
}

/// An object of this process: its name, its code, where it is loaded, its sections.
type Loaded = (String, Range<u64>, u64, ExplicitModuleSectionInfo<Vec<u8>>);

fn loaded() -> Vec<Loaded> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut base = 0;
    let mut all = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, rights, offset, _, _, path] = fields[..] else { continue };
        let (start, end) = range.split_once('-').unwrap();
        let [start, end, offset] =
            [start, end, offset].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        if offset == 0 {
            base = start;
        }
        let Ok(bytes) = fs::read(path) else { continue };
        if !rights.contains('x') {
            continue;
        }
        let file = object::File::parse(&*bytes).unwrap();
        let section = |name: &str| file.section_by_name(name);
        let data = |name| Some(section(name)?.uncompressed_data().ok()?.into_owned());
        let addr = |name| section(name).map(|at| at.address()..at.address() + at.size());
        let sections = ExplicitModuleSectionInfo {
            eh_frame: data(".eh_frame"),
            eh_frame_svma: addr(".eh_frame"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            eh_frame_hdr_svma: addr(".eh_frame_hdr"),
            text: data(".text"),
            text_svma: addr(".text"),
            ..Default::default()
        };
        all.push((path.to_owned(), start..end, base, sections));
    }
    all
}

/// This stack, up to its upper end.
#[inline(never)]
fn sample() -> Sample {
    let (ip, sp, bp): (u64, u64, u64);
    unsafe {
        asm!(
            "lea {ip}, [rip]", "mov {sp}, rsp", "mov {bp}, rbp",
            ip = out(reg) ip, sp = out(reg) sp, bp = out(reg) bp,
        );
    }
    let mut regs = UnwindRegsX86_64::new(ip, sp, bp);
    // A row may need it.
    let (rbx, r12, r13, r14, r15): (u64, u64, u64, u64, u64);
    unsafe {
        asm!(
            "mov {}, rbx", "mov {}, r12", "mov {}, r13", "mov {}, r14", "mov {}, r15",
            out(reg) rbx, out(reg) r12, out(reg) r13, out(reg) r14, out(reg) r15,
        );
    }
    use framehop::x86_64::Reg;
    for (register, value) in
        [(Reg::RBX, rbx), (Reg::R12, r12), (Reg::R13, r13), (Reg::R14, r14), (Reg::R15, r15)]
    {
        regs.set(register, value);
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let end = maps
        .lines()
        .filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let at = |hex| u64::from_str_radix(hex, 16).ok();
            (at(start)? <= sp && sp < at(end)?).then(|| at(end))?
        })
        .next()
        .unwrap();
    let start = sp - 128;
    let words = (start..end)
        .step_by(8)
        .map(|at| unsafe {
            std::ptr::with_exposed_provenance::<u64>(usize::try_from(at).unwrap()).read_volatile()
        })
        .collect();
    Sample { regs, start, words }
}

#[inline(never)]
fn deep(depth: usize, to: &mut Vec<Sample>) {
    if depth == 0 {
        return to.push(sample());
    }
    // Frames of other sizes, and of the standard library.
    let mut numbers: Vec<usize> = (0..depth % 5).collect();
    numbers.sort_by(|a, b| {
        if depth % 3 == 0 && to.len() < 200 {
            to.push(sample());
        }
        b.cmp(a)
    });
    deep(depth - 1, to);
    std::hint::black_box(&numbers);
}

#[test]
fn a_profiler_for_framehop_finds_the_same_frames() {
    let mut samples = Vec::new();
    deep(40, &mut samples);
    assert!(samples.len() > 20, "{}", samples.len());

    let (mut theirs, mut ours) = (UnwinderX86_64::new(), FramehopUnwinder::new());
    for (name, code, base, sections) in loaded() {
        theirs.add_module(Module::new(name.clone(), code.clone(), base, sections.clone()));
        ours.add_module(FramehopModule::new(name, code, base, sections));
    }
    assert_eq!(ours.max_known_code_address(), theirs.max_known_code_address());
    let (mut their_cache, mut our_cache) = (CacheX86_64::new(), FramehopCache::new());
    for sample in &samples {
        let (theirs, their_end) = profile(&theirs, &mut their_cache, sample);
        let (addresses, end) = profile(&ours, &mut our_cache, sample);
        assert!(addresses.len() > 10, "{addresses:x?}");
        assert_eq!(addresses, theirs, "{end:?} {their_end:?}");
        assert_eq!(end, Ok(()), "{addresses:x?}");
        // A clone, which has kept nothing, and a cache that another walk has left.
        assert_eq!(profile(&ours.clone(), &mut our_cache, sample).0, theirs);
    }
    assert!(our_cache.stats().hits > our_cache.stats().misses, "{:?}", our_cache.stats());
}

#[test]
fn a_stack_of_an_object_that_was_removed_is_not_whole() {
    let mut samples = Vec::new();
    deep(0, &mut samples);
    let mut unwinder = FramehopUnwinder::new();
    let loaded = loaded();
    for (name, code, base, sections) in loaded.clone() {
        unwinder.add_module(FramehopModule::new(name, code, base, sections));
    }
    let mut cache = FramehopCache::new();
    let (whole, end) = profile(&unwinder, &mut cache, &samples[0]);
    assert_eq!(end, Ok(()));
    let (_, code, ..) =
        loaded.iter().find(|(_, code, ..)| code.contains(whole.last().unwrap())).unwrap();
    unwinder.remove_module(code.start);
    let (rest, end) = profile(&unwinder, &mut cache, &samples[0]);
    assert!(end.is_err(), "{rest:x?}");
    assert!(rest.len() <= whole.len());
}

#[test]
fn an_object_without_a_search_table_is_indexed() {
    let mut samples = Vec::new();
    deep(3, &mut samples);
    let (mut by_table, mut by_index) = (FramehopUnwinder::new(), FramehopUnwinder::new());
    for (name, code, base, mut sections) in loaded() {
        by_table.add_module(FramehopModule::new(
            name.clone(),
            code.clone(),
            base,
            sections.clone(),
        ));
        sections.eh_frame_hdr = None;
        by_index.add_module(FramehopModule::new(name, code, base, sections));
    }
    for sample in &samples {
        let found = profile(&by_table, &mut FramehopCache::new(), sample);
        assert_eq!(profile(&by_index, &mut FramehopCache::new(), sample), found);
        assert_eq!(found.1, Ok(()));
    }
}
