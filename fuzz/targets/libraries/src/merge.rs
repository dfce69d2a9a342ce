//! A stream of samples and stacks, shuffled and damaged: each sample comes back
//! once, with the stack of its own thread and cookie or with none, in bounded
//! memory; and with every stack where nothing was lost.

use std::collections::{BTreeMap, BTreeSet};

use unwind_perf::{
    merge::{Merger, Outcome, Policy, Reorder, Timestamped, Unmatched},
    record::{Task, UserPart},
};

use crate::input::Input;

#[derive(Clone, Copy, Debug)]
enum Event {
    Sample(UserPart),
    Stack(u64),
    Lost(u64),
    Exec,
    Exit,
    Time,
}

/// How a sample ended.
#[derive(Debug)]
enum Ended {
    Inline,
    Merged(Vec<u64>),
    Unmatched(Option<u64>, Unmatched),
}

struct Stream {
    events: Vec<(Timestamped, Event)>,
    /// Nothing but samples and stacks, each cookie's stack among them once.
    whole: bool,
}

/// The stack under a cookie: short, sometimes empty.
fn stack_of(tid: u32, cookie: u64) -> Vec<u64> {
    (0..cookie % 4).map(|level| cookie << 16 | u64::from(tid) << 8 | level).collect()
}

impl Stream {
    /// Kernel entries of a few threads, as a kernel would write them.
    fn new(input: &mut Input<'_>) -> Self {
        let mut events = Vec::new();
        let mut whole = true;
        let (mut time, mut next_cookie) = (1_000_u64, 0);
        for _ in 0..input.u8() % 40 {
            let tid = 1 + u32::from(input.u8() % 4);
            let stamp = |time| Timestamped { task: Task { pid: 1 + tid / 3, tid }, time };
            let kind = input.u8();
            time += u64::from(input.u8());
            match kind {
                0..0xe0 => {
                    next_cookie += 1;
                    let cookie = next_cookie;
                    let user = UserPart::Deferred(cookie);
                    for _ in 0..kind % 4 {
                        time += 1;
                        events.push((stamp(time), Event::Sample(user)));
                    }
                    if kind < 0xd8 {
                        events.push((stamp(time + 2), Event::Stack(cookie)));
                    } else {
                        whole = false;
                    }
                    if kind & 0x40 != 0 {
                        events.push((stamp(time + 3), Event::Sample(user)));
                    }
                }
                0xe0..0xe8 => events.push((stamp(time), Event::Sample(UserPart::Inline))),
                0xe8..0xf0 => events.push((stamp(time), Event::Sample(UserPart::CookieLost))),
                _ => {
                    whole = false;
                    let event = match kind % 4 {
                        0 => Event::Lost(u64::from(input.u8())),
                        1 => Event::Exec,
                        2 => Event::Exit,
                        _ => Event::Time,
                    };
                    events.push((stamp(time), event));
                }
            }
        }
        Self { events, whole }
    }

    /// Events change places, come twice, under another cookie, or not at all.
    fn damage(&mut self, input: &mut Input<'_>) {
        for _ in 0..input.u8() % 16 {
            let len = self.events.len();
            if len == 0 {
                return;
            }
            let (at, other) = (input.below(len.min(256)), input.below(len.min(256)));
            match input.u8() % 8 {
                0 => {
                    self.events.remove(at);
                    self.whole = false;
                }
                1 => {
                    self.events.insert(other, self.events[at]);
                    self.whole = false;
                }
                2 => {
                    self.whole = false;
                    let cookie = u64::from(input.u8());
                    match &mut self.events[at].1 {
                        Event::Sample(user) => *user = UserPart::Deferred(cookie),
                        Event::Stack(old) => *old = cookie,
                        _ => {}
                    }
                }
                3 => {
                    self.whole = false;
                    self.events[at].0.time = input.u64();
                }
                _ => self.events.swap(at, other),
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut policy = Policy::default();
    let limited = input.u8() < 0x40;
    if limited {
        policy = policy.window(input.u8().into()).sample_window(input.u8().into());
        policy = policy.exit_lag(input.u8().into()).max_bytes(usize::from(input.u8()) * 16);
    }
    let mut stream = Stream::new(&mut input);
    stream.damage(&mut input);
    merge(&stream, policy, limited);
    reorder(&stream, usize::from(input.u16()), &mut input);
}

fn merge(stream: &Stream, policy: Policy, limited: bool) {
    let mut ends = BTreeMap::new();
    let mut merger = Merger::new(policy);
    let mut stacks = BTreeSet::new();
    for (index, &(stamp, event)) in stream.events.iter().enumerate() {
        match event {
            Event::Sample(user) => merger.sample(stamp, user, index, 24),
            Event::Stack(cookie) => {
                let stack = stack_of(stamp.task.tid, cookie);
                stacks.insert((stamp.task.tid, cookie));
                merger.deferred(stamp, cookie, stack);
            }
            Event::Lost(count) => merger.lost(count),
            Event::Exec => merger.exec(stamp),
            Event::Exit => merger.exit(stamp),
            Event::Time => merger.advance(stamp.time),
        }
        assert!(merger.bytes() <= policy.max_bytes, "{} bytes", merger.bytes());
        take_ended(&mut merger, &mut ends);
    }
    merger.finish();
    take_ended(&mut merger, &mut ends);
    let counts = *merger.counts();
    let (mut inline, mut merged, mut unmatched) = (0, 0, 0);
    for (index, (stamp, event)) in stream.events.iter().enumerate() {
        let Event::Sample(user) = *event else { continue };
        match (user, ends.remove(&index).expect("every sample comes back")) {
            (UserPart::Inline, Ended::Inline) => inline += 1,
            (UserPart::CookieLost, Ended::Unmatched(None, Unmatched::NoCookie)) => unmatched += 1,
            (UserPart::Deferred(cookie), Ended::Merged(stack)) => {
                merged += 1;
                // An exec gives its thread the id of the process.
                let owners = [stamp.task.tid, stamp.task.pid];
                let owner = owners.iter().find(|&&tid| {
                    stacks.contains(&(tid, cookie)) && stack_of(tid, cookie) == stack
                });
                assert!(owner.is_some(), "{stack:x?} is not of {cookie} of {stamp:?}");
            }
            (UserPart::Deferred(cookie), Ended::Unmatched(of, reason)) => {
                unmatched += 1;
                assert_eq!(of, Some(cookie));
                let all = stream.whole && !limited;
                assert!(!all, "{reason:?} though nothing was lost: {:?}", stream.events);
            }
            (user, ended) => panic!("{user:?} ended as {ended:?}"),
        }
    }
    assert!(ends.is_empty());
    assert_eq!(
        (counts.inline, counts.merged, counts.unmatched(), counts.samples),
        (inline, merged, unmatched, inline + merged + unmatched)
    );
}

/// Notes how each sample ended that has ended since the last call.
fn take_ended(merger: &mut Merger<usize>, ends: &mut BTreeMap<usize, Ended>) {
    while let Some((sample, outcome)) = merger.pop() {
        let ended = match outcome {
            Outcome::Inline => Ended::Inline,
            Outcome::Merged(merged) => Ended::Merged(merged.stack.to_vec()),
            Outcome::Unmatched { cookie, reason } => Ended::Unmatched(cookie, reason),
        };
        assert!(ends.insert(sample, ended).is_none(), "sample {sample} came twice");
    }
}

/// Items leave once each, in order of time but for those that are counted.
fn reorder(stream: &Stream, max_bytes: usize, input: &mut Input<'_>) {
    let mut reorder = Reorder::new(max_bytes);
    let mut left = Vec::new();
    for (index, (stamp, _)) in stream.events.iter().enumerate() {
        reorder.push(stamp.time, 8, (stamp.time, index));
        if input.u8() % 8 == 1 {
            reorder.round();
        }
        while let Some(item) = reorder.pop() {
            left.push(item);
        }
        assert!(reorder.bytes() <= max_bytes);
    }
    reorder.finish();
    while let Some(item) = reorder.pop() {
        left.push(item);
    }
    let disordered = left.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
    assert!(disordered <= reorder.counts().disordered);
    let mut indices: Vec<_> = left.iter().map(|&(_, index)| index).collect();
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..stream.events.len()));
}
