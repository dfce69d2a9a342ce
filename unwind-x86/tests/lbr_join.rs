//! A recorded chain joined with a walked one: each fills the other's gaps, and
//! what is over is left out.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use unwind_core::VirtAddr;
use unwind_x86::lbr::*;

const PC: u64 = 0x40_0123;

/// The call of frame `n` (1 is the caller of the sampled function).
fn call(n: u64) -> Branch {
    let from = 0x41_0000 + n * 0x100;
    Branch { from, to: 0x42_0000 + n * 0x100, info: BranchInfo::default() }
}

/// The address to which it returns: calls are two to fifteen bytes long.
fn ra(n: u64) -> u64 {
    call(n).from + 2 + n % 14
}

fn calls(range: core::ops::RangeInclusive<u64>) -> Vec<Branch> {
    range.map(call).collect()
}

fn walk(range: impl IntoIterator<Item = u64>) -> Vec<u64> {
    core::iter::once(PC).chain(range.into_iter().map(ra)).collect()
}

/// The frames by number, 0 for the sampled one, checked against where each
/// says it is from.
fn numbers(joined: &Joined<'_>) -> Vec<u64> {
    joined
        .frames()
        .map(|frame| {
            let n = frame.lookup_addr().get().wrapping_sub(0x41_0000) / 0x100;
            match frame {
                JoinedFrame::Sampled(pc) => {
                    assert_eq!((pc, frame.addr(), frame.lookup_addr()), (pc, pc, pc));
                    return 0;
                }
                JoinedFrame::Both { call: of, ra: to } => {
                    assert_eq!((of, to.get()), (call(n), ra(n)));
                    assert_eq!((frame.addr(), frame.lookup_addr().get()), (to, of.from));
                }
                JoinedFrame::Walked(to) => {
                    assert_eq!((to.get(), frame.addr()), (ra(n), to));
                    assert_eq!(frame.lookup_addr(), VirtAddr::new(to.get() - 1));
                }
                JoinedFrame::Recorded(of) => {
                    assert_eq!((of, frame.addr().get()), (call(n), of.from));
                }
            }
            n
        })
        .collect()
}

fn kinds(joined: &Joined<'_>) -> String {
    joined
        .frames()
        .map(|frame| match frame {
            JoinedFrame::Sampled(_) => 's',
            JoinedFrame::Both { .. } => 'b',
            JoinedFrame::Walked(_) => 'w',
            JoinedFrame::Recorded(_) => 'r',
        })
        .collect()
}

#[test]
fn the_walk_continues_where_the_record_ends() {
    for recorded in 0..=32 {
        let (calls, walk) = (calls(1..=recorded), walk(1..=40));
        let joined = join(&calls, &walk);
        assert_eq!(numbers(&joined), (0..=40).collect::<Vec<_>>());
        assert_eq!(joined.outcome(), JoinOutcome::Agree);
        let both = usize::try_from(recorded).unwrap();
        assert_eq!(joined.agreed(), both);
        assert_eq!(kinds(&joined), format!("s{}{}", "b".repeat(both), "w".repeat(40 - both)));
    }
}

#[test]
fn the_record_continues_where_the_walk_ends() {
    for walked in 0..=32 {
        let (calls, walk) = (calls(1..=32), walk(1..=walked));
        let joined = join(&calls, &walk);
        assert_eq!(numbers(&joined), (0..=32).collect::<Vec<_>>());
        assert_eq!(joined.outcome(), JoinOutcome::Agree);
        let both = usize::try_from(walked).unwrap();
        assert_eq!(joined.agreed(), both);
        assert_eq!(kinds(&joined), format!("s{}{}", "b".repeat(both), "r".repeat(32 - both)));
    }
    let joined = join(&[], &[]);
    assert_eq!(joined.frames().count(), 0);
    assert_eq!(numbers(&join(&calls(1..=3), &[])), [1, 2, 3]);
    assert_eq!(numbers(&join(&[], &walk([]))), [0]);
}

#[test]
fn frames_that_the_walk_missed_are_taken_from_the_record() {
    // At function entry a walk by frame pointers misses the caller; it may
    // miss two in a row, and anywhere.
    for (missed, recorded, walked) in [
        (1..=1, 10, 20),
        (1..=2, 10, 20),
        (4..=4, 10, 20),
        (4..=5, 10, 20),
        (8..=8, 10, 20),
        (1..=1, 20, 10),
        (8..=8, 20, 10),
        (3..=4, 10, 10),
    ] {
        let (calls, walk) =
            (calls(1..=recorded), walk((1..=walked).filter(|n| !missed.contains(n))));
        let joined = join(&calls, &walk);
        let depth = recorded.max(walked);
        assert_eq!(numbers(&joined), (0..=depth).collect::<Vec<_>>(), "{missed:?} missed");
        assert_eq!(joined.outcome(), JoinOutcome::WalkMissed);
        assert_eq!(joined.agreed(), usize::try_from(*missed.start()).unwrap() - 1);
    }
}

#[test]
fn calls_that_are_over_are_left_out() {
    // A longjmp went from frame 30 to what is frame 9 here: the record has the
    // calls since, then those that are over, then the rest.
    let over: Vec<Branch> = (50..=70).map(call).collect();
    for since in 0..5 {
        let recorded = [calls(1..=since), over.clone(), calls(since + 1..=10)].concat();
        let walk = walk(1..=12);
        let joined = join(&recorded, &walk);
        assert_eq!(numbers(&joined), (0..=12).collect::<Vec<_>>());
        assert_eq!(joined.outcome(), JoinOutcome::Disagree);
        assert_eq!(joined.agreed(), usize::try_from(since).unwrap());
    }
}

#[test]
fn frames_that_no_call_made_stay_in() {
    // A signal came in frame 3: its handler's frames and the interrupted pc are
    // in the walk, but the kernel made no call.
    let recorded = [calls(1..=2), calls(5..=10)].concat();
    let walk = walk(1..=12);
    let joined = join(&recorded, &walk);
    assert_eq!(numbers(&joined), (0..=12).collect::<Vec<_>>());
    assert_eq!((joined.outcome(), joined.agreed()), (JoinOutcome::Disagree, 2));
}

#[test]
fn one_match_after_a_gap_is_not_enough() {
    // The walk is wrong from frame 3 on, and its frame 3 is by chance what the
    // record has at 4.
    let recorded = calls(1..=6);
    let walked = [walk([1, 2, 4]), vec![0x9999_0000, 0x9999_1000]].concat();
    let joined = join(&recorded, &walked);
    assert_eq!(joined.outcome(), JoinOutcome::Disagree);
    // Nor if the walk ends with it.
    assert_eq!(join(&recorded, &walk([1, 2, 4])).outcome(), JoinOutcome::Disagree);
    // Two would be, but not if a later one disagrees.
    let walked = [walk([1, 2, 4, 5]), vec![0x9999_0000]].concat();
    assert_eq!(join(&recorded, &walked).outcome(), JoinOutcome::Disagree);
    let walked = walk([1, 2, 4, 5]);
    assert_eq!(join(&recorded, &walked).outcome(), JoinOutcome::WalkMissed);
}

#[test]
fn a_return_address_lies_two_to_fifteen_bytes_after_its_call() {
    let branch = call(1);
    for (distance, returns) in
        [(0_u64, false), (1, false), (2, true), (5, true), (15, true), (16, false)]
    {
        assert_eq!(branch.returns_to(branch.from.wrapping_add(distance)), returns);
    }
    assert!(!branch.returns_to(branch.from - 1));
    let highest = Branch { from: u64::MAX - 1, ..branch };
    assert!(highest.returns_to(3));
}

/// A deterministic source of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }
}

/// Stacks of every depth, records of 32 that are right, walks that are cut
/// short or miss a frame: the chain is always the stack from the inner end, and
/// reaches as far as either of the two.
#[test]
fn a_joined_chain_is_never_wrong_and_as_long_as_the_longer_of_the_two() {
    let mut random = Random(7);
    for round in 0..20_000 {
        let depth = random.below(100) + 1;
        let recorded = depth.min(32);
        let walked = if random.below(3) == 0 { random.below(depth + 1) } else { depth };
        // Recursion: some calls come from the same place.
        let period = if random.below(2) == 0 { depth } else { random.below(3) + 1 };
        let at = |n: u64| (n - 1) % period + 1;
        let stack: Vec<u64> = (1..=depth).map(at).collect();
        let recorded: Vec<Branch> =
            stack.iter().take(usize::try_from(recorded).unwrap()).map(|&n| call(n)).collect();
        let mut returns: Vec<u64> =
            stack.iter().take(usize::try_from(walked).unwrap()).map(|&n| ra(n)).collect();
        let missed = random.below(2) == 0 && walked > 3;
        if missed {
            returns.remove(usize::try_from(random.below(2)).unwrap());
        }
        let walk: Vec<u64> = core::iter::once(PC).chain(returns.iter().copied()).collect();
        let joined = join(&recorded, &walk);
        let chain: Vec<u64> = numbers(&joined).split_off(1);
        // A missed frame cannot be noticed where all calls are alike and the
        // walk reaches further than the record.
        let expected = usize::try_from(depth.min(32).max(walked)).unwrap();
        let hidden = missed && period < depth && chain.len() + 1 == expected;
        assert!(chain.len() == expected || hidden, "round {round}");
        assert_eq!(chain[..], stack[..chain.len()], "round {round}");
    }
}
