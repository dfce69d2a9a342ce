//! Walks a corpus by one unwinder, to count instructions by callgrind and to compare the frames with
//! the reference's.
//!
//! ```text
//! walk hot|replay|cold UNWINDER ROUNDS SNAPSHOTS FILE
//! walk depth UNWINDER ROUNDS FRAMES FILE
//! walk lookup plain|v2|indexed|gimli|simple-frame-rs ROUNDS PCS FILE
//! walk misses V3|V2|indexed|call-frames ROUNDS SNAPSHOTS FILE
//! walk changes unwind|framehop ROUNDS SNAPSHOTS FILE
//! walk request first|repeated|return ROUNDS 0 0
//! walk check FILE...
//! ```
//!
//! FILE may be `places:N`, too: a made-up program whose stacks lead through N return addresses.
//!
//! `hot` walks each snapshot ROUNDS times before the next, `replay` all of them
//! in time order ROUNDS times, `cold` forgets all before each. The last line
//! says how many frames that were, resp. lookups that found a row: `depth` walks stacks of as many
//! frames, ROUNDS times each, and says how many walks that were, `lookup` does
//! those of the walks in one image, without the walks. `misses` is `replay` with a
//! cache that is too small, and says how often that had no row: by `unwind::Unwinder` of call frame
//! information, the others by a walker of SFrame tables. `changes` is `replay`
//! with one of 1,000 modules taken out and added before each sample, and says how many
//! samples that were. `check` fails where a finding has no reason in `known.rs`.
//!
//! All of it is inlined into the program that measures, with the unwinders: so what else this library has
//! or a program adds changes little of the code that is measured.

use std::hint::black_box;
use std::path::Path;

use unwind_snapshot::Snapshot;

use crate::corpus::Corpus;
use crate::deferral::{Deferral, Task};
use crate::known::KNOWN;
use crate::lookup::{self, Lookups};
use crate::module_change::{FramehopChange, ModuleChange, UnwindChange};
use crate::{
    Contestant, Facade, Framehop, MissingUnwind, Report, Rows, Stats, Unwind, Unwinder, depth,
    places,
};

/// What the first argument may be.
pub const MODES: &[&str] =
    &["hot", "replay", "cold", "depth", "lookup", "misses", "changes", "request", "check"];

/// Does what the arguments say, by the benches' unwinders and `own` ones.
///
/// # Panics
///
/// If something is not as it should be.
#[inline]
pub fn run(arguments: &[&str], own: &[Contestant]) {
    match arguments {
        ["check", files @ ..] => {
            let unknown = files.iter().filter(|file| !check(&Corpus::open(Path::new(file)), own));
            let unknown = unknown.count();
            assert_eq!(unknown, 0, "corpora with findings without a reason");
        }
        ["request", what, rounds, ..] => request(what, rounds.parse().unwrap()),
        [mode, name, rounds, count, file] => {
            let corpus = open_corpus(file);
            let (rounds, count) = (rounds.parse().unwrap(), count.parse().unwrap());
            let open = || unwinder(name, &corpus, own);
            match *mode {
                "depth" => walk_to_depth(open(), rounds, count, &corpus),
                "lookup" => look_up(name, rounds, count, &Lookups::new(&corpus)),
                "misses" => miss(name, rounds, &middle(&corpus, count), &corpus),
                "changes" => change(name, rounds, &middle(&corpus, count), &corpus),
                _ => measure(mode, open(), rounds, &middle(&corpus, count)),
            }
        }
        _ => panic!("see the source for how it is used"),
    }
}

#[inline]
fn open_corpus(file: &str) -> Corpus {
    match file.strip_prefix("places:") {
        Some(number) => places::corpus(number.parse().unwrap()),
        None => Corpus::open(Path::new(file)),
    }
}

#[inline]
fn unwinder(name: &str, corpus: &Corpus, own: &[Contestant]) -> Box<dyn Unwinder> {
    let all = [&Contestant::all(), own].concat();
    let found = all.iter().find(|contestant| contestant.name == name);
    found.unwrap_or_else(|| panic!("no unwinder {name}")).open(corpus)
}

/// This number of snapshots from the middle: programs start alike.
#[inline]
fn middle(corpus: &Corpus, count: usize) -> Vec<Snapshot<'static>> {
    let from = corpus.snapshots.len().saturating_sub(count) / 2;
    corpus.snapshots.iter().skip(from).take(count).copied().collect()
}

#[inline]
fn miss(version: &str, rounds: usize, snapshots: &[Snapshot<'_>], corpus: &Corpus) {
    if version == "call-frames" {
        let facade = Facade::<4>::new(corpus, Rows::CallFrames);
        return count_misses(facade, Facade::stats, rounds, snapshots);
    }
    let unwind = match version {
        "V3" => MissingUnwind::new(corpus),
        "V2" => MissingUnwind::v2(corpus),
        "indexed" => MissingUnwind::indexed(corpus),
        _ => panic!("no version {version}"),
    };
    count_misses(unwind, MissingUnwind::stats, rounds, snapshots);
}

fn count_misses<U: Unwinder>(
    mut unwind: U,
    stats: impl Fn(&U) -> Stats,
    rounds: usize,
    snapshots: &[Snapshot<'_>],
) {
    for snapshot in (0..rounds).flat_map(|_| snapshots) {
        black_box(unwind.walk(black_box(snapshot)));
    }
    println!("{}", stats(&unwind).misses);
}

/// Prints how many samples were walked, each after a change of what is mapped.
#[inline]
fn change(name: &str, rounds: usize, snapshots: &[Snapshot<'_>], corpus: &Corpus) {
    let mut unwinder: Box<dyn ModuleChange> = match name {
        "unwind" => Box::new(UnwindChange::new(corpus)),
        "framehop" => Box::new(FramehopChange::new(corpus)),
        _ => panic!("no unwinder {name}"),
    };
    let mut samples = 0_usize;
    for snapshot in (0..rounds).flat_map(|_| snapshots) {
        unwinder.change();
        assert_ne!(black_box(unwinder.walk(black_box(snapshot))), 0);
        samples = samples.saturating_add(1);
    }
    println!("{samples}");
}

#[inline]
fn measure(mode: &str, mut unwinder: Box<dyn Unwinder>, rounds: usize, snapshots: &[Snapshot<'_>]) {
    let mut frames = 0_usize;
    let mut add = |unwinder: &mut dyn Unwinder, snapshot| {
        frames = frames.saturating_add(black_box(unwinder.walk(black_box(snapshot))));
    };
    match mode {
        "hot" => snapshots
            .iter()
            .for_each(|snapshot| (0..rounds).for_each(|_| add(&mut *unwinder, snapshot))),
        "replay" => (0..rounds)
            .for_each(|_| snapshots.iter().for_each(|snapshot| add(&mut *unwinder, snapshot))),
        "cold" => (0..rounds).for_each(|_| {
            for snapshot in snapshots {
                unwinder.forget();
                add(&mut *unwinder, snapshot);
            }
        }),
        _ => panic!("no mode {mode}"),
    }
    println!("{frames}");
}

/// Prints how many walks there were, each of a stack of `frames` frames.
#[inline]
fn walk_to_depth(mut unwinder: Box<dyn Unwinder>, rounds: usize, frames: usize, corpus: &Corpus) {
    let mut walks = 0_usize;
    for stack in depth::stacks(corpus, frames, 20) {
        for _ in 0..rounds {
            assert_eq!(black_box(unwinder.walk(black_box(&stack))), frames);
            walks = walks.saturating_add(1);
        }
    }
    assert_ne!(walks, 0, "{} has no stack of {frames} frames", corpus.name);
    println!("{walks}");
}

/// Asks for a stack: for the first time in each of `rounds` kernel entries of a
/// task, or again and again in one; or returns to user code with nothing asked.
/// The instructions are those of the function that does it.
fn request(what: &str, rounds: usize) {
    let (deferral, task) = (Deferral::new(1), Task::new());
    // The first entry of a task takes in which clients there are.
    assert!(deferral.request(&task, 0));
    deferral.deliver(&task, 1);
    if what == "repeated" {
        assert!(deferral.request(&task, 0));
    }
    for _ in 0..rounds {
        match what {
            "first" => {
                assert!(deferral.request(black_box(&task), 0));
                deferral.deliver(&task, 1);
            }
            "repeated" => assert!(deferral.request(black_box(&task), 0)),
            "return" => assert!(deferral.user_return(black_box(&task))),
            _ => panic!("no part {what}"),
        }
    }
    println!("{rounds}");
}

fn look_up(name: &str, rounds: usize, count: usize, lookups: &Lookups) {
    let pcs = lookups.pcs.get(..count).unwrap_or(&lookups.pcs);
    let indexed = lookups.indexed();
    let found = (0..rounds).map(|_| match name {
        "plain" => lookup::plain(&lookups.table(), black_box(pcs)),
        "v2" => lookup::plain(&lookups.table_v2(), black_box(pcs)),
        "indexed" => lookup::indexed(&indexed, black_box(pcs)),
        "gimli" => lookup::gimli(lookups.tables, black_box(pcs)),
        "simple-frame-rs" => lookup::simple_frame(lookups.tables, black_box(pcs)),
        _ => panic!("no table {name}"),
    });
    println!("{}", found.sum::<usize>());
}

/// Prints how the stacks of each unwinder compare with the reference's, and which
/// findings have no reason in the list.
#[inline]
fn check(corpus: &Corpus, own: &[Contestant]) -> bool {
    let report = Report::beside(corpus, own);
    print!("{report}");
    let unknown = report.unknown(KNOWN);
    for (finding, count, first) in &unknown {
        println!("    NOT KNOWN: {count} {finding:?}, first: {first}");
    }
    let mut ours = Unwind::new(corpus);
    let mut framehop = Framehop::new(corpus);
    for snapshot in &corpus.snapshots {
        ours.walk(snapshot);
        framehop.walk(snapshot);
    }
    let (hits, misses) = framehop.hits_and_misses();
    println!(
        "    from empty caches: unwind {:?}, framehop {hits} hits, {misses} misses",
        ours.stats()
    );
    unknown.is_empty()
}
