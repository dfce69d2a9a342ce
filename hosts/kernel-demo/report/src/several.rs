//! What must hold of a run on several CPUs, beside what must hold of each sample.

use std::collections::BTreeMap;
use std::error::Error;

use demo_format::{CYCLES, FOLLOWER, INSTRUCTIONS, OWN, SPANS, TRACER, WATCHER};

use crate::account::Account;
use crate::check::{Checker, ends, unmatched_cookies};
use crate::stream::{Events, SampleOutcome, Stream};
use crate::{Run, print_checks, print_merge};

/// Events by the client that they share.
const GROUPS: [(&str, &[u64]); 5] = [
    ("tracer", &[TRACER]),
    ("profiler", &[CYCLES, INSTRUCTIONS]),
    ("watcher", &[WATCHER, SPANS]),
    ("follower", &[FOLLOWER]),
    ("own work", &[OWN]),
];

/// Prints the report, and returns how many faults there are.
pub(crate) fn report(run: &Run) -> Result<usize, Box<dyn Error>> {
    let stream = Stream::decode(&run.records, &GROUPS.map(|(_, events)| events))?;
    let mut checker = Checker::new(&run.images, &stream.tasks);
    for events in &stream.events {
        for sample in &events.samples {
            checker.check(sample, events);
        }
    }
    let mut faults = Vec::new();
    for ((name, _), events) in GROUPS.iter().zip(&stream.events) {
        faults.extend(once_each(events).into_iter().map(|fault| format!("{name}: {fault}")));
        print_merge(name, events);
    }
    faults.extend(compare(&stream, &run.account));
    let (crossed, merged) = crossed(&stream.events);
    println!("cpus: {crossed} of {merged} stacks came on another cpu than their sample");
    if crossed == 0 {
        faults.push("no task changed its cpu".to_owned());
    }
    checker.faults.extend(faults);
    print_checks(&checker);
    Ok(checker.faults.len())
}

/// Each cookie is in one record, and each sample that has got a stack, its own.
fn once_each(events: &Events) -> Vec<String> {
    let mut faults = Vec::new();
    for (cookie, stack) in &events.stacks {
        if stack.count != 1 {
            faults.push(format!("cookie {cookie:#x} is in {} records", stack.count));
        }
    }
    for sample in &events.samples {
        let Some(cookie) = sample.cookie else { continue };
        let came = events.stack(cookie).is_some();
        if came != (sample.end == SampleOutcome::Merged) {
            faults.push(format!("cookie {cookie:#x} is in a record: {came}, {:?}", sample.end));
        }
    }
    faults
}

/// Samples whose stack came on another CPU, and all whose stack came.
fn crossed(events: &[Events]) -> (u64, u64) {
    let (mut crossed, mut merged) = (0, 0);
    for events in events {
        for sample in &events.samples {
            let stack = sample.cookie.and_then(|cookie| events.stack(cookie));
            if let Some(stack) = stack {
                merged += 1;
                crossed += u64::from(stack.cpu != sample.cpu);
            }
        }
    }
    (crossed, merged)
}

/// Compares what the kernel counted, on each CPU, with what came out of it.
fn compare(stream: &Stream, account: &Account) -> Vec<String> {
    let mut faults = Vec::new();
    let mut equal = |what: &str, left: u64, right: u64| {
        if left != right {
            faults.push(format!("{what}: {left} and {right}"));
        }
    };
    let get = |name: &str| account.get(name);
    let mut samples = BTreeMap::<_, [u64; 3]>::new();
    for events in &stream.events {
        for sample in &events.samples {
            let counts = samples.entry((sample.cpu, sample.event)).or_default();
            counts[0] += 1;
            counts[1] += u64::from(sample.cookie.is_some());
        }
        for stack in events.stacks.values() {
            samples.entry((stack.cpu, stack.event)).or_default()[2] += stack.count;
        }
    }
    let tracer = &stream.events[0];
    let (mut taken, mut asked, mut came) = (0, 0, tracer.counts.records);
    for cpu in 0..u32::try_from(get("machine: cpus")).unwrap_or(0) {
        for event in [CYCLES, INSTRUCTIONS, WATCHER, SPANS, FOLLOWER, OWN] {
            let counts = samples.get(&(cpu, event)).copied().unwrap_or_default();
            for (what, count) in ["samples", "promised", "stacks"].into_iter().zip(counts) {
                let name = format!("cpu {cpu} event {event}: {what}");
                equal(&name, get(&name), count);
            }
            taken += counts[0];
            asked += counts[1];
            // Work of a task's own is no delivery.
            came += if event == OWN { 0 } else { counts[2] };
        }
        equal("stacks without an event", get(&format!("cpu {cpu}: without event")), 0);
        came += get(&format!("cpu {cpu}: strangers"));
        equal("stacks without room", get(&format!("cpu {cpu}: failed")), 0);
    }
    equal("samples of all cpus", taken, get("samples: taken"));
    let places = ["in user code", "in the kernel", "in threads"];
    let places = places.map(|place| get(&format!("samples: {place}")));
    equal("samples by place", taken, places.iter().sum());
    equal("calls traced and recorded", get("traced calls: traced"), count(tracer));
    let delivered = get("deliveries: matched") + get("deliveries: truncated");
    equal("stacks", delivered, came);
    let told = get("deliveries: task gone") + get("deliveries: exec");
    // A tracer that does not ask is not told of what does not come, either.
    let others = usize::from(get("machine: for everyone") != 0);
    let unmatched = stream.events.iter().skip(others).map(unmatched_cookies).sum();
    equal("deliveries without a stack, and cookies without one", told, unmatched);
    for events in &stream.events {
        equal("samples by how they end", events.counts.samples, ends(events));
    }
    for (what, least) in [
        ("records: lost", 0),
        ("deliveries: lost", 0),
        ("deliveries: truncated", 0),
        ("pages: frames left", 0),
    ] {
        equal(what, get(what), least);
    }
    let agreed = get("lbr: agree") + get("lbr: of signals");
    equal("branch records that agree", get("lbr: compared"), agreed);
    equal("memory for records", get("task data: given"), get("task data: back"));
    equal("parts traced, and traced whole", get("aux: parts"), get("aux: whole"));
    equal("branches traced outside of the parts", get("aux: outside"), 0);
    equal("walks that are not as the shadow stack", get("shadow: other"), 0);
    equal("modules that were not whole", get("modules: wrong"), 0);
    equal("stops after which the trace was on", get("shared trace: still on"), 0);
    equal("returns that are not as the shadow stack", get("shadow: wrong returns"), 0);
    let mut above_zero = |what: &str, number: u64| {
        if number == 0 {
            faults.push(format!("{what}: none"));
        }
    };
    above_zero("samples with a cookie", asked);
    for ((name, _), events) in GROUPS.iter().zip(&stream.events) {
        above_zero(&format!("samples of the {name} whose stack came"), events.counts.merged);
    }
    for what in [
        "samples: within the unwinder",
        "pages: evicted",
        "lbr: agree",
        "lbr: from other cpus",
        "modules: found",
        "shared trace: switches",
        "shadow: as the walk",
        "aux: parts",
    ] {
        above_zero(what, get(what));
    }
    faults
}

fn count(events: &Events) -> u64 {
    events.samples.len() as u64
}
