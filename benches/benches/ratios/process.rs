//! The stack of the running process.

use std::hint::black_box;

use unwind_benches::corpus::Corpus;
use unwind_benches::in_process::{self, FramePointerWalk, own_code};
use unwind_benches::own_stack::{Backtrace, Ladder, Top};
use unwind_benches::timing::Effort;
use unwind_benches::{Framehop, MAX_FRAMES, Unwind, Unwinder as _};

use super::{fact, line};

/// How often each walks in a round: often enough for the clock, and not so often
/// that something else comes between in every round.
const REPEATS: usize = 50;

const LOCAL: &str = "unwind-local";
/// The library's walker over a table that the bench makes, as a host may have it.
const BY_SFRAME: &str = "unwind, SFrame";
const BY_CHAIN: &str = "unwind, frame pointers";
const RAW: &str = "two-load loop";

/// A walk of the stack, which is this many frames deep for it.
struct Contestant<'a> {
    name: &'static str,
    frames: usize,
    round: Box<dyn FnMut() + 'a>,
}

impl<'a> Contestant<'a> {
    fn new(name: &'static str, frames: usize, mut walk: impl FnMut() -> usize + 'a) -> Self {
        let round = move || {
            for _ in 0..REPEATS {
                black_box(walk());
            }
        };
        Self { name, frames, round: Box::new(round) }
    }
}

pub(crate) fn measure(effort: Effort) {
    for depth in [100, 400] {
        for (order, state) in [("", 0), (", random", 0x1234_5678_9abc_def1)] {
            let mut chain_time = None;
            for has_chain in [true, false] {
                let Some(ladder) = Ladder::new(has_chain) else { return };
                let code = own_code();
                let kind = if has_chain { "fp" } else { "no fp" };
                let name = format!("{kind}, {depth}{order}");
                let mut times = Vec::new();
                ladder.climb(depth, state, |top| {
                    times = times_at(&name, &code, &top, has_chain, effort)
                });
                print(&name, &times, &mut chain_time);
            }
        }
    }
}

/// The times of all that can walk this stack, in nanoseconds a frame, after a
/// check of their frames.
fn times_at(
    name: &str,
    code: &Corpus,
    top: &Top<'_>,
    has_chain: bool,
    effort: Effort,
) -> Vec<(&'static str, f64)> {
    let expected = in_process::reference(code, top);
    assert!(expected.len() > 100, "{name}: {} frames", expected.len());
    let libunwind = Backtrace::of_libunwind();
    let glibc = Backtrace::of_glibc();
    let mut contestants = Vec::new();

    unwind_local::prepare();
    let mut frames = [0; MAX_FRAMES];
    let count = unwind_local::backtrace(&mut frames).len;
    let found: Vec<u64> = frames[..count].iter().map(|&pc| pc.try_into().unwrap()).collect();
    assert_same_callers(&expected, &found, LOCAL);
    let walk = move || unwind_local::backtrace(black_box(&mut frames)).len;
    contestants.push(Contestant::new(LOCAL, count, walk));

    let mut unwind = Unwind::new(code);
    in_process::walk(&mut unwind, top);
    assert_eq!(unwind.frames(), expected, "{name}");
    let walk = move || in_process::walk(&mut unwind, black_box(top));
    contestants.push(Contestant::new(BY_SFRAME, expected.len(), walk));

    if has_chain {
        let mut frames = [0; MAX_FRAMES];
        let count = top.follow_frame_pointers(&mut frames);
        assert_eq!(frames[..count], expected[1..=count], "{name}");
        let mut checked = FramePointerWalk::default();
        checked.walk(top);
        assert_eq!(checked.frames(), expected[..=count], "{name}");
        let walk = move || black_box(top).follow_frame_pointers(black_box(&mut frames));
        contestants.push(Contestant::new(RAW, count, walk));
        let walk = move || checked.walk(black_box(top));
        contestants.push(Contestant::new(BY_CHAIN, count, walk));
    }

    let mut framehop = Framehop::new(code);
    in_process::walk_by_framehop(&mut framehop, top);
    assert_eq!(framehop.frames(), expected, "{name}");
    let walk = move || in_process::walk_by_framehop(&mut framehop, black_box(top));
    contestants.push(Contestant::new("framehop", expected.len(), walk));

    for (name, function) in
        [("libunwind's unw_backtrace", &libunwind), ("glibc's backtrace", &glibc)]
    {
        let Some(function) = function else {
            let missing = "not installed: in Debian, libunwind8 has it";
            assert!(std::env::var_os("UNWIND_REQUIRE_TOOLS").is_none(), "{name}: {missing}");
            fact(name, "", missing);
            continue;
        };
        let mut frames = [0; MAX_FRAMES];
        let mut walk = function.walker();
        let count = walk(&mut frames);
        assert_same_callers(&expected, &frames[..count], name);
        contestants.push(Contestant::new(name, count, move || walk(black_box(&mut frames))));
    }

    let mut rounds: Vec<_> = contestants.iter_mut().map(|one| &mut *one.round as _).collect();
    let times = effort.race(&mut rounds);
    let per_frame =
        |(one, time): (&Contestant<'_>, f64)| (one.name, time / (REPEATS * one.frames) as f64);
    contestants.iter().zip(times).map(per_frame).collect()
}

/// A function starts with its own caller, further in than the first frame: from
/// the second one on, the frames are the same. It may know the end better or
/// worse by one.
fn assert_same_callers(expected: &[u64], found: &[u64], name: &str) {
    let from = found.iter().position(|&frame| frame == expected[1]);
    let callers = &found[from.unwrap_or_else(|| panic!("{name}: no caller of the first frame"))..];
    let same = expected[1..].iter().zip(callers).take_while(|(a, b)| a == b).count();
    assert!(same + 2 >= expected.len() && callers.len() <= same + 1, "{name}: {same} frames");
}

/// The ratios of one stack's times, and to the loop over frame pointers at the
/// same depth.
fn print(name: &str, times: &[(&'static str, f64)], chain_time: &mut Option<f64>) {
    let time = |of: &str| times.iter().find(|(name, _)| *name == of).map(|(_, time)| *time);
    *chain_time = time(RAW).or(*chain_time);
    for way in [LOCAL, BY_SFRAME] {
        let ours = time(way).unwrap();
        for &(rival, theirs) in times.iter().filter(|(rival, _)| !rival.starts_with("unwind")) {
            line(way, name, ours, rival, theirs);
        }
        if let (None, Some(chain)) = (time(RAW), *chain_time) {
            line(way, name, ours, "two-load loop, code with fp", chain);
        }
    }
    if let (Some(ours), Some(theirs)) = (time(BY_CHAIN), time(RAW)) {
        line(BY_CHAIN, name, ours, RAW, theirs);
    }
}
