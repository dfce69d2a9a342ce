//! What can happen to a call chain on its way, case by case.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

mod common;

use common::{Located, decode_deferred, drained, feed};
use testdata::{PerfRecording, perf_file};
use unwind_perf::merge::{
    MergeCounts, Merger, Outcome, Policy, Timestamped, Unmatched, whole_chain,
};
use unwind_perf::record::{
    CallchainDeferred, Context, DeferredLayout, Encode, Endian, Entry, EventFormat, Record,
    RecordType, Sample, SampleId, Task, UserPart,
};

/// What became of a sample.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Inline,
    Merged { stack: Vec<u64>, across_exec: bool, late: bool },
    Unmatched(Option<u64>, Unmatched),
}

/// The samples that have ended.
fn ends<S>(merger: &mut Merger<S>) -> Vec<(S, End)> {
    let ended = core::iter::from_fn(|| merger.pop());
    ended.map(|(sample, outcome)| (sample, End::from(outcome))).collect()
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Inline => Self::Inline,
            Outcome::Merged(merged) => Self::Merged {
                stack: merged.stack.to_vec(),
                across_exec: merged.across_exec,
                late: merged.late,
            },
            Outcome::Unmatched { cookie, reason } => Self::Unmatched(cookie, reason),
        }
    }
}

/// A recording, merged in the order of draining.
struct Case {
    recording: PerfRecording,
}

impl Case {
    fn new(name: &str) -> Self {
        Self { recording: PerfRecording::parse(&perf_file(name)) }
    }

    fn records(&self) -> Vec<Located<'_>> {
        drained(&self.recording)
    }

    fn merge(&self) -> (Vec<(Located<'_>, End)>, MergeCounts) {
        let mut merger = Merger::new(Policy::default());
        for located in self.records() {
            feed(&mut merger, located);
        }
        merger.finish();
        (ends(&mut merger), *merger.counts())
    }
}

/// The one stack of a thread's cookie, looked up without a merger.
fn stack_of<'a>(records: &[Located<'a>], tid: u32, cookie: u64) -> Option<(Located<'a>, Vec<u64>)> {
    let mut found = records
        .iter()
        .filter(|located| located.record.kind() == RecordType::CALLCHAIN_DEFERRED)
        .map(|located| (located, decode_deferred(located)))
        .filter(|(_, stack)| stack.cookie == Some(cookie) && stack.id.task.unwrap().tid == tid);
    let (located, stack) = found.next()?;
    assert!(found.next().is_none(), "the recording has one record a cookie");
    Some((*located, stack.ips.collect()))
}

fn cookie_of(located: &Located<'_>) -> Option<u64> {
    let sample = Sample::decode(&located.record, located.format).unwrap();
    match sample.callchain?.user_part() {
        UserPart::Deferred(cookie) => Some(cookie),
        UserPart::Inline | UserPart::CookieLost => None,
    }
}

#[test]
fn x5_a_thread_that_migrates_finds_its_stack_in_the_other_ring() {
    let case = Case::new("mig.raw");
    let records = case.records();
    let (ends, _) = case.merge();
    let mut crossed = 0;
    let mut crossed_back = 0;
    for (located, end) in &ends {
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let Some(cookie) = cookie_of(located) else { continue };
        let Some((record, stack)) = stack_of(&records, sample.task.unwrap().tid, cookie) else {
            continue;
        };
        let End::Merged { stack: merged, .. } = end else { panic!("{cookie:#x} is {end:?}") };
        assert_eq!(*merged, stack);
        crossed += usize::from(record.ring != located.ring);
        // The cookie names the CPU that asked first, counted from one.
        let asked_on = u32::try_from(cookie & 0xffff_ffff).unwrap() - 1;
        crossed_back += usize::from(sample.cpu != Some(asked_on));
    }
    assert!(crossed >= 30, "{crossed} samples crossed rings");
    assert!(crossed_back >= 10, "{crossed_back} samples joined a cookie of another CPU");
}

#[test]
fn x5_a_late_sample_finds_the_stack_that_came_before_it() {
    let mut late = 0;
    for name in ["c32k.raw", "two64.raw", "mig.raw", "sys.raw"] {
        let case = Case::new(name);
        let records = case.records();
        let (ends, counts) = case.merge();
        for (located, end) in &ends {
            let End::Merged { stack, late: true, .. } = end else { continue };
            let sample = Sample::decode(&located.record, located.format).unwrap();
            let (record, expected) =
                stack_of(&records, sample.task.unwrap().tid, cookie_of(located).unwrap()).unwrap();
            assert_eq!(*stack, expected);
            assert!(record.ring != located.ring || record.offset < located.offset);
            late += 1;
        }
        assert!(counts.merged_late > 0, "{name} has late samples");
    }
    assert!(late >= 20, "{late} late samples");
}

#[test]
fn x5_a_record_with_an_older_time_than_its_sample_is_merged() {
    // The sample interrupted the record between its time and its place.
    let mut older = 0;
    for name in ["c32k.raw", "two64.raw", "lost.raw"] {
        let case = Case::new(name);
        let records = case.records();
        for (located, end) in case.merge().0 {
            let End::Merged { late: false, .. } = end else { continue };
            let sample = Sample::decode(&located.record, located.format).unwrap();
            let tid = sample.task.unwrap().tid;
            let (record, _) = stack_of(&records, tid, cookie_of(&located).unwrap()).unwrap();
            older += usize::from(decode_deferred(&record).id.time < sample.time);
        }
    }
    assert!(older >= 2, "{older} records are older than the sample in front of them");
}

#[test]
fn x5_a_merge_across_exec_is_marked() {
    let case = Case::new("selfexec.raw");
    let (ends, counts) = case.merge();
    let is_exec = |located: &&Located<'_>| {
        located.record.kind() == RecordType::COMM && located.record.header().misc.0 & 1 << 13 != 0
    };
    let records = case.records();
    let execs: Vec<u64> = records
        .iter()
        .filter(is_exec)
        .map(|located| SampleId::decode(&located.record, located.format).unwrap().time.unwrap())
        .collect();
    let mut marked = 0;
    for (located, end) in &ends {
        let End::Merged { stack, across_exec, .. } = end else { continue };
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let tid = sample.task.unwrap().tid;
        let (record, _) = stack_of(&records, tid, cookie_of(located).unwrap()).unwrap();
        let time = decode_deferred(&record).id.time;
        let between = execs.iter().any(|exec| sample.time < Some(*exec) && Some(*exec) <= time);
        assert_eq!(*across_exec, between, "sample at {:?}", sample.time);
        if between {
            assert_eq!(stack.len(), 1, "the entry point of the program after the exec");
            marked += 1;
        }
    }
    assert!(marked > 20, "{marked} merges across exec");
    assert_eq!(counts.merged_across_exec, marked);
}

#[test]
fn x5_an_exit_leaves_its_last_samples_unmatched_and_says_so() {
    let case = Case::new("mig.raw");
    let (ends, counts) = case.merge();
    let unmatched: Vec<&(Located<'_>, End)> =
        ends.iter().filter(|(_, end)| matches!(end, End::Unmatched(..))).collect();
    for (located, end) in &unmatched {
        assert!(
            matches!(end, End::Unmatched(Some(cookie), Unmatched::Exit) if cookie_of(located) == Some(*cookie)),
            "{end:?}"
        );
    }
    assert_eq!(unmatched.len(), 2);
    assert_eq!((counts.unmatched_exit, counts.unmatched()), (2, 2));
}

#[test]
fn x5_two_events_share_a_cookie_and_get_the_same_stack() {
    let case = Case::new("two64.raw");
    let mut by_cookie = std::collections::BTreeMap::<u64, Vec<(usize, Vec<u64>)>>::new();
    for (located, end) in case.merge().0 {
        if let End::Merged { stack, .. } = end {
            let cookie = cookie_of(&located).unwrap();
            by_cookie.entry(cookie).or_default().push((located.event, stack));
        }
    }
    let mut shared = 0;
    for samples in by_cookie.values() {
        let (first_event, first_stack) = &samples[0];
        assert!(samples.iter().all(|(_, stack)| stack == first_stack));
        shared += usize::from(samples.iter().any(|(event, _)| event != first_event));
    }
    assert!(shared >= 10, "{shared} cookies have samples of both events");
}

#[test]
fn x5_lost_records_leave_their_samples_unmatched_and_others_alone() {
    let case = Case::new("lost.raw");
    let records = case.records();
    let (ends, counts) = case.merge();
    for (located, end) in &ends {
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let cookie = cookie_of(located).unwrap();
        match (stack_of(&records, sample.task.unwrap().tid, cookie), end) {
            (Some((_, expected)), End::Merged { stack, .. }) => assert_eq!(*stack, expected),
            (None, End::Unmatched(Some(found), reason)) => {
                assert_eq!(*found, cookie);
                assert!(matches!(reason, Unmatched::Lost | Unmatched::Exit), "{reason:?}");
            }
            (expected, end) => panic!("{end:?} instead of {:?}", expected.map(|(_, stack)| stack)),
        }
    }
    assert_eq!(counts.lost, 2023);
    assert_eq!((counts.merged, counts.unmatched()), (177, 82));
    assert!(counts.unmatched_lost >= 75, "{} say why", counts.unmatched_lost);
}

#[test]
fn h12_a_mark_without_a_cookie_is_reported_and_matches_nothing() {
    let case = Case::new("ctx2.raw");
    let (ends, counts) = case.merge();
    let mut without = 0;
    for (located, end) in &ends {
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let chain = sample.callchain.unwrap();
        if chain.user_part() == UserPart::CookieLost {
            assert_eq!(*end, End::Unmatched(None, Unmatched::NoCookie));
            let last = chain.entries().last();
            assert_eq!(last, Some(Entry::Context(Context::UserDeferred)), "no address is a cookie");
            without += 1;
        }
    }
    assert!(without >= 88, "{without} samples");
    assert_eq!(counts.unmatched_no_cookie, without);
    assert_eq!(counts.records_unused, 88);
}

#[test]
fn kernel_threads_and_idle_have_no_user_part() {
    let case = Case::new("sys.raw");
    let (ends, counts) = case.merge();
    let idle = ends
        .iter()
        .filter(|(located, _)| {
            let sample = Sample::decode(&located.record, located.format).unwrap();
            sample.task == Some(Task { pid: 0, tid: 0 })
        })
        .inspect(|(_, end)| assert_eq!(*end, End::Inline))
        .count();
    assert!(idle > 0);
    assert_eq!(counts.inline, 74);
}

const TASK: Task = Task { pid: 40, tid: 41 };

fn id(time: u64) -> SampleId {
    SampleId { task: Some(TASK), time: Some(time), ..SampleId::default() }
}

/// IP, TID, TIME, CALLCHAIN; other records end in TID and TIME.
fn format() -> EventFormat {
    use unwind_perf::record::{AttrFlags, SampleType};
    EventFormat {
        sample_type: SampleType::IP | SampleType::TID | SampleType::TIME | SampleType::CALLCHAIN,
        flags: AttrFlags::SAMPLE_ID_ALL,
        ..EventFormat::default()
    }
}

#[test]
fn stacks_that_the_kernel_cut_at_510_frames_are_merged_whole() {
    let case = Case::new("deep.raw");
    let records = case.records();
    let mut cut = 0;
    for (located, end) in case.merge().0 {
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let (tid, cookie) = (sample.task.unwrap().tid, cookie_of(&located).unwrap());
        let Some((_, stack)) = stack_of(&records, tid, cookie) else { continue };
        cut += usize::from(stack.len() == 510);
        assert_eq!(end, End::Merged { stack, across_exec: false, late: false });
    }
    assert!(cut >= 3, "{cut} stacks were cut");
}

#[test]
fn a_record_of_510_frames_is_merged_whole() {
    // What one page of cache holds: (4096 - 16) / 8.
    let frames: Vec<u64> = (0..510).map(|frame| 0x40_1000 + 16 * frame).collect();
    let deferred =
        CallchainDeferred { cookie: Some(0x3_0000_0001), ips: frames.iter().copied(), id: id(20) };
    for endian in [Endian::Little, Endian::Big] {
        let mut bytes = Vec::new();
        deferred.encode(format(), endian, &mut bytes).unwrap();
        // Header, cookie, count, frames, TID, TIME.
        assert_eq!(bytes.len(), 8 + 8 + 8 + 510 * 8 + 8 + 8);
        let record = Record::parse(&bytes, endian).unwrap();
        let decoded = CallchainDeferred::decode(&record, format(), DeferredLayout::Cookie).unwrap();
        let mut merger = Merger::new(Policy::default());
        let at = Timestamped { task: TASK, time: 10 };
        merger.sample(at, UserPart::Deferred(0x3_0000_0001), (), 0);
        let at = Timestamped { task: TASK, time: 20 };
        merger.deferred(at, decoded.cookie.unwrap(), decoded.ips);
        let whole = End::Merged { stack: frames.clone(), across_exec: false, late: false };
        assert_eq!(ends(&mut merger), [((), whole)]);
    }
}

#[test]
fn x5_a_record_that_comes_twice_is_used_once() {
    let mut merger = Merger::new(Policy::default());
    let at = |time| Timestamped { task: TASK, time };
    let user = UserPart::Deferred(9);
    merger.sample(at(1), user, 'a', 0);
    merger.deferred(at(2), 9, [1, 2]);
    merger.sample(at(3), user, 'b', 0);
    merger.deferred(at(4), 9, [1, 2]);
    merger.sample(at(5), user, 'c', 0);
    merger.deferred(at(6), 9, [1, 3]);
    merger.sample(at(7), user, 'd', 0);
    merger.finish();
    let (ends, counts) = (ends(&mut merger), *merger.counts());
    let merged = |late| End::Merged { stack: vec![1, 2], across_exec: false, late };
    assert_eq!(
        ends,
        [('a', merged(false)), ('b', merged(true)), ('c', merged(true)), ('d', merged(true))]
    );
    assert_eq!((counts.records, counts.records_repeated, counts.records_conflicting), (3, 1, 1));
}

#[test]
fn x5_records_that_every_event_receives_are_used_once() {
    let case = Case::new("dup.raw");
    let (ends, counts) = case.merge();
    assert!(counts.records_repeated >= 30, "{} records came again", counts.records_repeated);
    assert_eq!((counts.records_conflicting, counts.samples), (0, 105));
    assert_eq!(u64::try_from(ends.len()).unwrap(), counts.samples, "each sample ends once");
}

#[test]
fn x5_after_a_fork_parent_and_child_keep_to_their_own_stacks() {
    let child = Task { pid: 50, tid: 50 };
    let mut merger = Merger::new(Policy::default());
    // A clock as cookie source can give two CPUs the same value.
    let user = UserPart::Deferred(77);
    merger.sample(Timestamped { task: TASK, time: 1 }, user, "parent", 0);
    merger.sample(Timestamped { task: child, time: 1 }, user, "child", 0);
    merger.deferred(Timestamped { task: child, time: 2 }, 77, [0xc]);
    merger.deferred(Timestamped { task: TASK, time: 3 }, 77, [0xa]);
    merger.finish();
    let (ends, counts) = (ends(&mut merger), *merger.counts());
    let merged = |ip| End::Merged { stack: vec![ip], across_exec: false, late: false };
    assert_eq!(ends, [("child", merged(0xc)), ("parent", merged(0xa))]);
    assert_eq!(counts.merged, 2);
}

#[test]
fn x5_samples_of_a_thread_that_an_exec_renames_are_merged_across_it() {
    let case = Case::new("threadexec.raw");
    let records = case.records();
    let (ends, _) = case.merge();
    let mut renamed = 0;
    for (located, end) in &ends {
        let sample = Sample::decode(&located.record, located.format).unwrap();
        let (task, cookie) = (sample.task.unwrap(), cookie_of(located));
        let Some(cookie) = cookie.filter(|_| task.tid != task.pid) else { continue };
        // No stack under its own id, one under that of the process.
        if stack_of(&records, task.tid, cookie).is_none()
            && let Some((_, stack)) = stack_of(&records, task.pid, cookie)
        {
            assert_eq!(*end, End::Merged { stack, across_exec: true, late: false });
            renamed += 1;
        }
    }
    assert_eq!(renamed, 10);
}

#[test]
fn x5_an_exec_by_another_thread_than_the_first_changes_the_thread_id() {
    let thread = Timestamped { task: Task { pid: 60, tid: 63 }, time: 10 };
    let stranger = Timestamped { task: Task { pid: 70, tid: 73 }, time: 10 };
    let leader = Timestamped { task: Task { pid: 60, tid: 60 }, time: 30 };
    let mut merger = Merger::new(Policy::default());
    merger.sample(thread, UserPart::Deferred(5), "before", 0);
    merger.sample(stranger, UserPart::Deferred(5), "stranger", 0);
    merger.exec(Timestamped { time: 20, ..leader });
    merger.sample(Timestamped { time: 25, ..leader }, UserPart::Deferred(5), "after", 0);
    merger.deferred(leader, 5, [0x40_1540]);
    merger.finish();
    let ends = ends(&mut merger);
    let merged = |across_exec| End::Merged { stack: vec![0x40_1540], across_exec, late: false };
    assert_eq!(
        ends,
        [
            ("after", merged(false)),
            ("before", merged(true)),
            ("stranger", End::Unmatched(Some(5), Unmatched::End)),
        ]
    );
}

#[test]
fn r3_6_a_stack_is_not_taken_for_that_of_an_earlier_kernel_entry() {
    // Sample, its record dropped, return to user, entry, sample, record.
    let mut merger = Merger::new(Policy::default().window(0));
    let at = |time| Timestamped { task: TASK, time };
    merger.sample(at(1), UserPart::Deferred(3), "first", 0);
    merger.lost(1);
    merger.sample(at(5), UserPart::Deferred(5), "second", 0);
    merger.deferred(at(6), 5, [0xb]);
    merger.finish();
    assert_eq!(
        ends(&mut merger),
        [
            ("first", End::Unmatched(Some(3), Unmatched::Lost)),
            ("second", End::Merged { stack: vec![0xb], across_exec: false, late: false }),
        ]
    );
}

#[test]
fn the_whole_chain_has_the_user_mark_and_no_cookie() {
    let deferred = Context::UserDeferred.word();
    let (kernel, user) = (Context::Kernel.word(), Context::User.word());
    let (guest, guest_user) = (Context::GuestKernel.word(), Context::GuestUser.word());
    for (words, stack, expected) in [
        (vec![deferred, 9], vec![1, 2], vec![user, 1, 2]),
        (vec![kernel, 7, deferred, 9], vec![1], vec![kernel, 7, user, 1]),
        (vec![kernel, 7, deferred, 9], vec![], vec![kernel, 7, user]),
        // No cookie: the part stays empty.
        (vec![kernel, 7, deferred], vec![], vec![kernel, 7, user]),
        // Not deferred: nothing is added.
        (vec![kernel, 7, user, 8], vec![1], vec![kernel, 7, user, 8]),
        (vec![], vec![1], vec![]),
        // A guest's frames are those that the thread's have entered.
        (
            vec![user, 7, deferred, 9],
            vec![guest, 1, guest_user, 2],
            vec![guest, 1, guest_user, 2, user, 7],
        ),
        (vec![user, 7, deferred, 9], vec![guest_user, 2], vec![guest_user, 2, user, 7]),
        (vec![user, 7], vec![guest_user, 2], vec![user, 7]),
    ] {
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let chain = unwind_perf::record::Callchain::new(unwind_perf::record::Words::new(
            &bytes,
            Endian::Little,
        ));
        assert_eq!(whole_chain(chain, &stack).collect::<Vec<_>>(), expected, "{words:x?}");
    }
}
