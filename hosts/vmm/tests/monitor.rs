//! Each sample of a monitor gets one stack, which is the right one, whatever its vCPUs are and wherever their pages.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, process};

use demo_vmm::{Machine, Options, Report, has_kvm};
use unwind_perf::merge::{Merger, Outcome, Policy, Timestamped};
use unwind_perf::record::{
    Attr, AttrFlags, Callchain, CallchainDeferred, DeferredLayout, Endian, EventFormat, Record,
    RecordType, Records, Sample, UserPart,
};
use unwind_profile::{By, Format, ProfileOptions};

/// Signals would meet those of another machine's threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(kvm: bool, absent: bool) {
    if kvm && !has_kvm() {
        eprintln!("skipped: no /dev/kvm");
        return;
    }
    // Another test that has failed changes nothing for this one.
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("demo-vmm-{}-{kvm}-{absent}", process::id());
    let output = env::temp_dir().join(name).with_extension("data");
    let options =
        Options { vcpus: 2, samples: 1000, hertz: 1000, absent, kvm, output: Some(output.clone()) };
    let machine = match Machine::new(options) {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("skipped: no faults of this process's own: {error}");
            return;
        }
    };
    let report = machine.run().unwrap();
    assert!(report.is_right(), "{report}");
    assert_eq!((report.left > 0, report.brought > 0), (absent, absent), "{report}");
    check(&output, &report);
    check_profile(&output);
    fs::remove_file(&output).unwrap();
    fs::remove_file(output.with_extension("guest")).unwrap();
}

#[test]
fn each_sample_of_kvms_vcpus_has_one_right_stack() {
    run(true, false);
}

#[test]
fn each_sample_of_kvms_vcpus_has_one_right_stack_where_pages_are_absent() {
    run(true, true);
}

#[test]
fn each_sample_of_made_up_vcpus_has_one_right_stack() {
    run(false, false);
}

#[test]
fn each_sample_of_made_up_vcpus_has_one_right_stack_where_pages_are_absent() {
    run(false, true);
}

/// Reads a recording as any tool does: each sample is merged, and each stack is of a sample.
fn check(recording: &Path, report: &Report) {
    let bytes = fs::read(recording).unwrap();
    let (format, records) = records(&bytes);
    let mut merger = Merger::new(Policy::default());
    let (mut samples, mut stacks) = (0, HashMap::<_, u32>::new());
    for record in records {
        match record.kind() {
            RecordType::SAMPLE => {
                let sample = Sample::decode(&record, format).unwrap();
                let chain: Callchain<'_> = sample.callchain.unwrap();
                assert!(matches!(chain.user_part(), UserPart::Deferred(_)), "{chain:?}");
                assert!(chain.words().count() > 5, "the host's part: {chain:?}");
                let at = Timestamped { task: sample.task.unwrap(), time: sample.time.unwrap() };
                samples += 1;
                merger.sample(at, chain.user_part(), (), 0);
            }
            RecordType::CALLCHAIN_DEFERRED => {
                let layout = DeferredLayout::Cookie;
                let stack = CallchainDeferred::decode(&record, format, layout).unwrap();
                let (id, cookie) = (stack.id, stack.cookie.unwrap());
                *stacks.entry(cookie).or_default() += 1;
                let at = Timestamped { task: id.task.unwrap(), time: id.time.unwrap() };
                merger.deferred(at, cookie, stack.ips);
            }
            _ => {}
        }
    }
    merger.finish();
    assert_eq!((samples, stacks.len() as u64), (report.samples, report.stacks));
    assert!(stacks.values().all(|&count| count == 1), "a cookie has one stack");
    let mut merged = 0;
    while let Some(((), outcome)) = merger.pop() {
        assert!(matches!(outcome, Outcome::Merged(_)), "{outcome:?}");
        merged += 1;
    }
    assert_eq!(merged, samples);
}

/// The profile has one stack of each sample: the thread on the host, `[guest]`, its user code, its kernel.
fn check_profile(recording: &Path) {
    let options = ProfileOptions::new(Format::Folded).by(By::Thread);
    let profile = options.open(recording).unwrap();
    let mut folded = Vec::new();
    profile.write(Format::Folded, &mut folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    let (mut samples, mut in_kernel) = (0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        let frames: Vec<_> = stack.split(';').collect();
        let guest = frames.iter().position(|&frame| frame == "[guest]").expect(line);
        let (host, guest) = (&frames[..guest], &frames[guest + 1..]);
        assert!(host.iter().any(|frame| frame.contains("VcpuThread")), "{line}");
        assert!(host[0].starts_with("vcpu ") && guest[0] == "user_start", "{line}");
        let is_kernel = |frame: &&str| frame.starts_with("kernel_");
        let (kernel, user): (Vec<_>, Vec<_>) = guest.iter().copied().partition(is_kernel);
        assert!(user.iter().all(|frame| frame.starts_with("user_")), "{line}");
        assert_eq!(guest, [user, kernel.clone()].concat(), "{line}");
        samples += count;
        in_kernel += if kernel.is_empty() { 0 } else { count };
    }
    assert_eq!(samples, profile.samples(), "{folded}");
    assert!(in_kernel > 0 && in_kernel < samples, "{folded}");
}

/// The records of a recording in pipe form, and their format.
fn records(bytes: &[u8]) -> (EventFormat, impl Iterator<Item = Record<'_>>) {
    const START: usize = 16;
    const HEADER: usize = 8;
    let attr = Attr::parse(&bytes[START + HEADER..], Endian::Little).unwrap();
    assert!(attr.format.flags.contains(AttrFlags::DEFER_OUTPUT));
    let records = Records::new(&bytes[START..], Endian::Little);
    (attr.format, records.map(Result::unwrap))
}
