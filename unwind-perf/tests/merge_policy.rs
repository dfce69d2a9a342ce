//! What a merge waits for, what it holds, and what it gives up.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

use std::collections::BTreeMap;

use unwind_perf::merge::{Merger, Outcome, Policy, Timestamped, Unmatched};
use unwind_perf::record::{Task, UserPart};

fn at(tid: u32, time: u64) -> Timestamped {
    Timestamped { task: Task { pid: 1, tid }, time }
}

/// Adds "name: outcome" of each sample that has ended.
fn note(merger: &mut Merger<&'static str>, notes: &mut Vec<String>) {
    while let Some((sample, outcome)) = merger.pop() {
        notes.push(match outcome {
            Outcome::Inline => format!("{sample}: inline"),
            Outcome::Merged(merged) => format!("{sample}: {:x?}", merged.stack),
            Outcome::Unmatched { reason, .. } => format!("{sample}: {reason:?}"),
        });
    }
}

/// How many samples have ended since the last call.
fn ended<S>(merger: &mut Merger<S>) -> u64 {
    let mut ended = 0;
    while merger.pop().is_some() {
        ended += 1;
    }
    ended
}

const A: UserPart = UserPart::Deferred(0xa);
const B: UserPart = UserPart::Deferred(0xb);

#[test]
fn a_stack_under_a_newer_cookie_closes_the_older_one_once_the_window_is_past() {
    for (window, closed_at) in [(0, 20), (5, 25), (100, 120)] {
        let mut notes = Vec::new();
        let mut merger = Merger::new(Policy::default().window(window));
        merger.sample(at(7, 10), A, "a", 0);
        merger.sample(at(7, 20), B, "b", 0);
        merger.deferred(at(7, 20), 0xb, [1]);
        for time in 20..closed_at {
            merger.advance(time);
            note(&mut merger, &mut notes);
            assert_eq!(notes, ["b: [1]"], "window {window}, time {time}");
        }
        merger.advance(closed_at);
        note(&mut merger, &mut notes);
        notes.sort();
        note(&mut merger, &mut notes);
        assert_eq!(notes, ["a: NewerCookie", "b: [1]"], "window {window}");
    }
}

#[test]
fn what_is_over_ends_before_the_stack_that_shows_it_is_merged() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0));
    merger.sample(at(7, 10), A, "a", 0);
    merger.sample(at(7, 20), B, "b", 0);
    merger.deferred(at(7, 30), 0xb, [1]);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: NewerCookie", "b: [1]"]);
}

#[test]
fn g8_cookies_that_rise_say_which_entry_is_over_where_times_do_not() {
    // One thread, whose first entry's stack was lost. All times are those of a slow clock.
    for (ascending, expected) in [(true, "a: NewerCookie"), (false, "a: End")] {
        for times in [[10, 10, 10], [0, 0, 0], [12, 11, 10]] {
            let mut notes = Vec::new();
            let policy = Policy::default().window(0).ascending_cookies(ascending);
            let mut merger = Merger::new(policy);
            // An older cookie that comes late closes nothing.
            merger.sample(at(7, times[1]), B, "b", 0);
            merger.sample(at(7, times[0]), A, "a", 0);
            merger.deferred(at(7, times[2]), 0xb, [1]);
            merger.advance(times[0] + 1);
            merger.finish();
            note(&mut merger, &mut notes);
            notes.sort();
            let by_time = !ascending && times[0] <= times[1];
            let expected = if by_time { "a: NewerCookie" } else { expected };
            assert_eq!(notes, [expected, "b: [1]"], "{ascending} {times:?}");
        }
    }
}

#[test]
fn a_sample_under_a_newer_cookie_closes_the_older_one_where_stacks_do_not_come() {
    for (sample_window, closed_at) in [(0, 20), (5, 25), (100, 120)] {
        let mut notes = Vec::new();
        let policy = Policy::default().window(0).sample_window(sample_window);
        let mut merger = Merger::new(policy);
        merger.sample(at(7, 10), A, "a", 0);
        merger.sample(at(7, 20), B, "b", 0);
        for time in 20..closed_at {
            merger.advance(time);
            note(&mut merger, &mut notes);
            assert!(notes.is_empty(), "window {sample_window}: closed at {time}");
        }
        merger.advance(closed_at);
        note(&mut merger, &mut notes);
        assert_eq!(notes, ["a: NewerCookie"], "window {sample_window}");
    }
}

#[test]
fn a_sample_from_before_a_stack_that_is_here_already_waits_for_the_window_only() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(10));
    merger.deferred(at(7, 100), 0xb, [1]);
    merger.sample(at(7, 95), A, "a", 0);
    merger.advance(109);
    note(&mut merger, &mut notes);
    assert!(notes.is_empty(), "its stack can still come from another ring");
    merger.advance(110);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: NewerCookie"]);
}

#[test]
fn a_cookie_reaches_back_to_its_oldest_sample_in_whatever_order_they_come() {
    for order in [[30, 20], [20, 30]] {
        let mut notes = Vec::new();
        let mut merger = Merger::new(Policy::default().window(0));
        for time in order {
            merger.sample(at(7, time), B, "b", 0);
        }
        // Within the time of the other cookie, so neither is newer.
        merger.sample(at(7, 25), A, "a", 0);
        merger.deferred(at(7, 31), 0xb, [1]);
        merger.advance(1000);
        note(&mut merger, &mut notes);
        assert_eq!(notes, ["b: [1]", "b: [1]"], "{order:?}");
        merger.deferred(at(7, 1001), 0xa, [2]);
        note(&mut merger, &mut notes);
        assert_eq!(notes.last().unwrap(), "a: [2]", "{order:?}");
    }
}

#[test]
fn without_any_stack_a_thread_has_a_bounded_number_of_open_cookies() {
    let mut merger = Merger::new(Policy::default().sample_window(u64::MAX));
    let mut ends = 0_u64;
    for cookie in 1..=1000 {
        let user = UserPart::Deferred(cookie);
        merger.sample(at(7, cookie), user, (), 8);
        ends += ended(&mut merger);
        assert!(cookie - ends <= 64);
    }
}

#[test]
fn the_end_gives_out_what_waits_in_the_order_in_which_it_came() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default());
    merger.sample(at(9, 30), A, "first", 0);
    merger.sample(at(7, 10), B, "second", 0);
    merger.sample(at(9, 40), A, "third", 0);
    merger.finish();
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["first: End", "second: End", "third: End"]);
}

#[test]
fn another_thread_closes_nothing() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0));
    merger.sample(at(7, 10), A, "a", 0);
    merger.deferred(at(8, 20), 0xb, [1]);
    merger.advance(u64::MAX);
    note(&mut merger, &mut notes);
    assert!(notes.is_empty());
    // However long the thread slept.
    merger.deferred(at(7, u64::MAX), 0xa, [2]);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: [2]"]);
}

#[test]
fn a_loss_alone_closes_nothing() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0));
    merger.sample(at(7, 10), A, "a", 0);
    merger.lost(1000);
    merger.deferred(at(7, 20), 0xa, [2]);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: [2]"]);
}

#[test]
fn a_stack_waits_for_late_samples_until_a_newer_cookie() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(10));
    merger.deferred(at(7, 10), 0xa, [1]);
    merger.sample(at(7, 500), A, "late", 0);
    merger.deferred(at(7, 600), 0xb, [2]);
    // In another ring, within the window.
    merger.sample(at(7, 595), A, "later", 0);
    merger.advance(610);
    merger.sample(at(7, 596), A, "too late", 0);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["late: [1]", "later: [1]", "too late: NewerCookie"]);
}

#[test]
fn input_out_of_order_within_the_window_merges_as_if_it_were_sorted() {
    // Three kernel entries, four events in each, in any order within 40 ns.
    let mut events = Vec::new();
    for (entry, cookie) in [(0, 0xa), (1, 0xb), (2, 0xc)] {
        let start = 100 + entry * 10;
        events.push((start, cookie, Some("sample")));
        events.push((start + 1, cookie, Some("sample")));
        events.push((start + 5, cookie, None));
        events.push((start + 6, cookie, Some("late")));
    }
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..2000 {
        for i in (1..events.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            events.swap(i, usize::try_from(random >> 33).unwrap() % (i + 1));
        }
        let mut merger = Merger::new(Policy::default().window(40));
        for &(time, cookie, sample) in &events {
            match sample {
                Some(name) => {
                    let user = UserPart::Deferred(cookie);
                    merger.sample(at(7, time), user, name, 0);
                }
                None => merger.deferred(at(7, time), cookie, [cookie]),
            }
        }
        merger.finish();
        let counts = *merger.counts();
        assert_eq!((counts.merged, counts.unmatched()), (9, 0), "{events:?}");
    }
}

#[test]
fn an_exit_gives_the_reason_and_ends_the_wait_after_its_lag() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0).exit_lag(50));
    merger.sample(at(7, 10), A, "a", 0);
    merger.sample(at(8, 10), B, "b", 0);
    merger.exit(at(7, 20));
    merger.exit(at(8, 21));
    // An event of the CPU still receives the stack.
    merger.deferred(at(7, 60), 0xa, [1]);
    merger.advance(70);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: [1]"]);
    merger.advance(71);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: [1]", "b: Exit"]);
}

#[test]
fn an_exit_does_not_end_the_wait_of_a_later_thread_with_the_same_id() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0).exit_lag(50));
    merger.sample(at(7, 10), A, "old", 0);
    merger.exit(at(7, 20));
    merger.sample(at(7, 40), B, "young", 0);
    merger.advance(1000);
    merger.deferred(at(7, 1001), 0xb, [1]);
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["old: Exit", "young: [1]"]);
}

#[test]
fn x5_a_sample_is_across_an_exec_that_comes_after_it_and_not_after_its_stack() {
    // The time of the sample and of the stack, about an exec at 20.
    for (sample, stack, expected) in
        [(19, 20, true), (20, 21, false), (19, 19, false), (10, 30, true), (21, 22, false)]
    {
        for late in [false, true] {
            let mut merger = Merger::new(Policy::default());
            let add_sample = |merger: &mut Merger<()>| merger.sample(at(7, sample), A, (), 0);
            // The thread is known before its exec.
            merger.sample(at(7, 1), B, (), 0);
            if !late {
                add_sample(&mut merger);
            }
            merger.exec(at(7, 20));
            merger.deferred(at(7, stack), 0xa, [1]);
            if late {
                add_sample(&mut merger);
            }
            let ended = core::iter::from_fn(|| merger.pop());
            let across: Vec<bool> = ended
                .filter_map(|(_, outcome)| match outcome {
                    Outcome::Merged(merged) => Some(merged.across_exec),
                    _ => None,
                })
                .collect();
            assert_eq!(across, [expected], "{sample} {stack} {late}");
        }
    }
}

#[test]
fn a_stream_without_times_goes_by_its_order() {
    let mut notes = Vec::new();
    let mut merger = Merger::new(Policy::default().window(0));
    merger.sample(at(7, 0), A, "a", 0);
    merger.deferred(at(7, 0), 0xa, [1]);
    merger.sample(at(7, 0), A, "late", 0);
    merger.sample(at(7, 0), B, "b", 0);
    merger.deferred(at(7, 0), 0xc, [3]);
    merger.finish();
    note(&mut merger, &mut notes);
    assert_eq!(notes, ["a: [1]", "late: [1]", "b: NewerCookie"]);
}

#[test]
fn memory_is_kept_to_by_giving_up_old_stacks_first_and_then_old_samples() {
    let limit = 20_000;
    let mut evicted = Vec::new();
    let mut merger = Merger::new(Policy::default().max_bytes(limit));
    for tid in 0..1000 {
        let cookie = u64::from(tid) + 1;
        merger.deferred(at(5000 + tid, cookie), cookie, [1; 20]);
        assert!(merger.bytes() <= limit);
    }
    assert!(merger.counts().records_evicted > 900, "{}", merger.counts().records_evicted);
    for tid in 0..1000 {
        let cookie = u64::from(tid) + 1;
        merger.sample(at(tid, 2000 + cookie), UserPart::Deferred(cookie), tid, 100);
        assert!(merger.bytes() <= limit);
    }
    // All stacks went before the first sample did.
    assert_eq!(merger.counts().records_evicted, 1000);
    assert_eq!(merger.oldest_waiting(), Some(2000 + merger.counts().unmatched_evicted + 1));
    let given_up = merger.counts().unmatched_evicted;
    while let Some((name, outcome)) = merger.pop() {
        match outcome {
            Outcome::Unmatched { reason: Unmatched::Evicted, .. } => evicted.push(name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(given_up > 900);
    assert_eq!(evicted, (0..u32::try_from(given_up).unwrap()).collect::<Vec<_>>(), "oldest first");
}

#[test]
fn many_samples_of_one_cookie_are_held_to_the_limit_as_well() {
    let limit = 20_000;
    let mut merger = Merger::new(Policy::default().max_bytes(limit));
    for time in 0..10_000 {
        merger.sample(at(7, time), A, (), 50);
        assert!(merger.bytes() <= limit);
    }
    merger.finish();
    let counts = *merger.counts();
    assert_eq!((ended(&mut merger), counts.samples), (10_000, 10_000));
    assert_eq!(counts.unmatched_evicted + counts.unmatched_end, 10_000);
}

#[test]
fn memory_comes_back_when_threads_come_and_go() {
    // No newer cookie, no sample after the record: only the exit ends them.
    let mut merger = Merger::new(Policy::default().window(1000).exit_lag(1000));
    let mut high = 0;
    for tid in 0..50_000_u32 {
        let time = u64::from(tid) * 100;
        let cookie = u64::from(tid) + 1;
        let user = UserPart::Deferred(cookie);
        merger.sample(at(tid, time), user, (), 100);
        if tid % 2 == 0 {
            merger.deferred(at(tid, time + 10), cookie, [1; 10]);
        }
        merger.exit(at(tid, time + 20));
        high = high.max(merger.bytes());
    }
    assert!(high < 50_000, "{high} bytes");
    merger.finish();
    let counts = *merger.counts();
    assert_eq!((counts.merged, counts.unmatched_exit), (25_000, 25_000));
}

#[test]
fn many_overlapping_cookies_of_one_thread_stay_cheap_and_bounded() {
    // No kernel writes this: every cookie spans the same time.
    let mut merger = Merger::new(Policy::default().max_bytes(1 << 20).window(0));
    for cookie in 1..20_000_u64 {
        for time in [5, 1_000_000] {
            let user = UserPart::Deferred(cookie);
            merger.sample(at(7, time), user, (), 8);
        }
    }
    assert!(merger.bytes() <= 1 << 20);
    merger.finish();
    assert_eq!(ended(&mut merger), 2 * 19_999);
}

/// Notes the stack of each sample that has ended.
fn take_ended(merger: &mut Merger<u64>, ends: &mut BTreeMap<u64, Option<Vec<u64>>>) {
    while let Some((sample, outcome)) = merger.pop() {
        let stack = match outcome {
            Outcome::Merged(merged) => Some(merged.stack.to_vec()),
            Outcome::Inline | Outcome::Unmatched { .. } => None,
        };
        assert_eq!(ends.insert(sample, stack), None, "sample {sample} ended twice");
    }
}

/// Random events, against a model that keeps everything and looks up at the
/// end.
#[test]
fn x5_every_sample_ends_exactly_once_and_never_with_a_strange_stack() {
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..300 {
        let policy = Policy::default()
            .window([0, 20, 1000, u64::MAX][usize::try_from(next(4)).unwrap()])
            .exit_lag([next(100), u64::MAX][usize::try_from(next(2)).unwrap()])
            .max_bytes([2_000, 10_000, usize::MAX][usize::try_from(next(3)).unwrap()]);
        let mut merger = Merger::new(policy);
        let mut samples = BTreeMap::new();
        let mut stacks = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for step in 0..500 {
            let tid = u32::try_from(next(5)).unwrap();
            let cookie = step / 20 + next(4);
            let stamp = at(tid, step * 10 + next(60));
            match next(8) {
                0..4 => {
                    samples.insert(step, (tid, cookie));
                    merger.sample(stamp, UserPart::Deferred(cookie), step, 64);
                }
                4..6 => {
                    let stack = vec![u64::from(tid), cookie];
                    merger.deferred(stamp, cookie, stack.iter().copied());
                    stacks.insert((tid, cookie), stack);
                }
                6 => merger.exec(stamp),
                _ => merger.exit(stamp),
            }
            assert!(merger.bytes() <= policy.max_bytes);
            take_ended(&mut merger, &mut ends);
        }
        merger.finish();
        take_ended(&mut merger, &mut ends);
        let counts = *merger.counts();
        assert_eq!(ends.len(), samples.len(), "round {round}");
        assert_eq!(counts.samples, counts.inline + counts.merged + counts.unmatched());
        for (sample, stack) in ends {
            // All threads have pid 1: thread 1 may take over by exec.
            let (tid, cookie) = samples[&sample];
            if let Some(stack) = stack {
                assert_eq!(stack[1], cookie);
                assert!(stack[0] == u64::from(tid) || stack[0] == 1, "{stack:?} for {tid}");
            } else if policy.window == u64::MAX
                && policy.max_bytes == usize::MAX
                && policy.exit_lag == u64::MAX
            {
                assert_eq!(stacks.get(&(tid, cookie)), None, "sample {sample} missed its stack");
            }
        }
    }
}
