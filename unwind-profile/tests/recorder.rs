//! Programs that are recorded by the library: this one, a command, a process that runs.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::fs;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use unwind_profile::{
    Difference, Format, Ledger, Profile, ProfileOptions, ReadingError, RecordError, Recorder,
};

/// The CPU time of this thread in milliseconds.
fn cpu_time() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Takes CPU time, for half a second.
#[inline(never)]
fn burns() -> u64 {
    let end = cpu_time() + 500;
    let mut sum = 0_u64;
    while cpu_time() < end {
        sum = (0..10_000).fold(sum, |sum, number| black_box(sum.wrapping_mul(31) + number));
    }
    sum
}

/// The same, until it is told to end.
#[inline(never)]
fn burns_until(ends: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !ends.load(Ordering::Relaxed) {
        sum = (0..10_000).fold(sum, |sum, number| black_box(sum.wrapping_mul(31) + number));
    }
    sum
}

/// Reads no lines: the debug information of the standard library takes longer than the rest.
fn options(format: Format) -> ProfileOptions {
    ProfileOptions::new(format).inlined(false)
}

fn recorder() -> Recorder {
    Recorder::new().rate(1999).options(options(Format::Text))
}

/// Samples in whose stacks a function of this test is.
fn samples_in(profile: &Profile, function: &str) -> u64 {
    let functions = profile.functions();
    let name = format!("recorder::{function}");
    functions.iter().filter(|found| found.name == name).map(|found| found.total).sum()
}

fn assert_whole(profile: &Profile) {
    let ledger = profile.ledger();
    assert_eq!(ledger.check(), Ok(()));
    let Ledger { written, complete, .. } = *ledger;
    // Until the tables are there stacks are copied, and cut where a recorder without optimization does not keep
    // pace with the program.
    let cut = ledger.incomplete.get("stack-copy-too-short").copied().unwrap_or(0);
    let is_whole = (complete + cut) * 100 >= written * 95 && complete * 100 >= written * 60;
    assert!(written > 0 && is_whole, "{ledger}");
}

#[test]
fn a_closure_is_recorded_and_nothing_else() {
    let (sum, profile) = recorder().record(burns).unwrap();
    black_box(sum);
    assert_whole(&profile);
    let ledger = profile.ledger();
    let found = samples_in(&profile, "burns");
    assert!(found * 100 >= ledger.written * 95, "{found} of {ledger}");
    assert_eq!(profile.samples(), ledger.written);
    let of_recorder = profile.functions().into_iter().find(|function| {
        // The one that has called the closure.
        function.name.contains("Session::") || function.name.contains("Drain::")
    });
    assert_eq!(of_recorder, None);
    assert!(profile.ended().errors.is_empty());
}

#[test]
fn threads_that_a_closure_starts_are_recorded() {
    let start_two = || {
        thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(burns));
            threads.into_iter().for_each(|thread| _ = black_box(thread.join().unwrap()));
        });
    };
    let ((), profile) = recorder().record(start_two).unwrap();
    assert_whole(&profile);
    // Each takes as much CPU time as one closure does.
    let found = samples_in(&profile, "burns");
    assert!(found * 100 >= profile.ledger().written * 90, "{found} of {}", profile.ledger());
}

#[test]
fn threads_that_ran_before_are_recorded_if_that_is_asked_for() {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| burns_until(&ends));
        let (_, alone) = recorder().record(burns).unwrap();
        let (_, all) = recorder().all_threads(true).record(burns).unwrap();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(samples_in(&alone, "burns_until"), 0);
        assert!(samples_in(&all, "burns_until") > 0, "{}", all.ledger());
        assert!(samples_in(&all, "burns") > 0, "{}", all.ledger());
    });
}

#[test]
fn a_closure_that_panics_ends_its_recording() {
    let record = || recorder().record(|| panic!("as it should"));
    let panicked = catch_unwind(AssertUnwindSafe(record)).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"as it should"));
    let (_, profile) = recorder().record(burns).unwrap();
    assert_whole(&profile);
}

#[test]
fn a_command_is_recorded_to_its_end() {
    let mut command = Command::new("sh");
    command.args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 3"]);
    let (status, profile) = recorder().command(command).unwrap();
    assert_eq!(status.code(), Some(3));
    assert_whole(&profile);
    let error = recorder().command(Command::new("/no/such/program")).unwrap_err();
    assert!(matches!(error, RecordError::Start(_)), "{error:?}");
    assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
}

#[test]
fn a_process_is_recorded_for_a_time() {
    let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let profile = recorder().process(child.id(), Duration::from_millis(700));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_whole(&profile.unwrap());
    let error = recorder().process(u32::MAX, Duration::ZERO).unwrap_err();
    assert!(matches!(error, RecordError::NoProcess(_)), "{error}");
}

#[test]
fn a_kept_recording_is_read_as_it_was_recorded_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
    let (_, profile) = recorder().output(&before).record(burns).unwrap();
    let read = options(Format::Text).open(&before).unwrap();
    assert_eq!(read.ledger(), profile.ledger());
    assert_eq!(read.functions(), profile.functions());
    recorder().output(&after).record(burns).unwrap();
    let difference = Difference::open([before], [after], &options(Format::Text)).unwrap();
    let mut text = Vec::new();
    difference.write(Format::Text, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("recorder::burns"), "{text}");
    assert!(difference.write(Format::Pprof, Vec::new()).is_err());
    assert!(difference.ended().errors.is_empty());
    let none = Difference::open(Vec::<&str>::new(), Vec::new(), &options(Format::Text));
    assert!(matches!(none, Err(ReadingError::NoRecording(_))), "{none:?}");
}

#[test]
fn a_profile_is_written_in_each_format_with_its_function() {
    let folder = tempfile::tempdir().unwrap();
    let (_, profile) = recorder().options(options(Format::Html)).record(burns).unwrap();
    for &format in Format::ALL {
        if format == Format::Parquet {
            let error = profile.write(format, Vec::new()).unwrap_err();
            assert!(error.to_string().contains("save_tables"), "{error}");
            profile.save_tables(folder.path().join("tables")).unwrap();
            continue;
        }
        let path = folder.path().join(format!("{format:?}"));
        profile.save(format, &path).unwrap();
        let bytes = fs::read(path).unwrap();
        let mut written = Vec::new();
        profile.write(format, &mut written).unwrap();
        assert!(!bytes.is_empty() && bytes.len() == written.len(), "{format:?}");
        let is_compressed = format == Format::Pprof;
        let has_name = String::from_utf8_lossy(&bytes).contains("burns");
        assert!(has_name || is_compressed, "{format:?}");
    }
}

#[test]
fn what_is_no_recording_is_refused_with_its_name() {
    let error = Profile::open("/dev/null").unwrap_err();
    assert!(matches!(error, ReadingError::Recording(_)), "{error:?}");
    assert!(error.to_string().starts_with("/dev/null: "), "{error}");
    let error = Profile::open("/no/such/recording").unwrap_err();
    assert!(error.to_string().starts_with("/no/such/recording: "), "{error}");
}
