//! Events by perf's names, several in one recording, and the options that perf's users type.

use std::process::Child;

use super::*;

/// What a ledger says of each event: its name, how many samples were written, and how many are in its
/// classes.
fn by_event(ledger: &Value) -> Vec<(String, u64, u64)> {
    let events = ledger["events"].as_array().unwrap().iter();
    let of_event = |event: &Value| {
        let count = |key: &str| event[key].as_u64().unwrap();
        let incomplete = event["incomplete"].as_object().unwrap().values();
        let incomplete: u64 = incomplete.map(|count| count.as_u64().unwrap()).sum();
        let classes = ["complete", "kernel_only", "unmatched", "unchecked", "damaged", "dropped"];
        let classified = classes.map(count).iter().sum::<u64>() + incomplete;
        (event["event"].as_str().unwrap().to_owned(), count("written"), classified)
    };
    events.map(of_event).collect()
}

/// A process that never ends by itself.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let script = ["-c", "while :; do :; done"];
        Self(Command::new("sh").args(script).stdin(Stdio::null()).spawn().unwrap())
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The events of perf's listing, with how many samples each has.
fn perf_counts(data: &Path) -> Option<Vec<(String, u64)>> {
    let perf = tool("perf")?;
    let listed = Command::new(&perf).args(["evlist", "-i"]).arg(data).output().unwrap();
    let script = Command::new(perf).args(["script", "-F", "event", "-G", "-i"]).arg(data).output();
    let script = text(&script.unwrap().stdout);
    let count = |name: &str| {
        let lines = script.lines().filter(|line| line.trim().trim_end_matches(':') == name);
        u64::try_from(lines.count()).unwrap()
    };
    let names = text(&listed.stdout);
    Some(names.lines().map(|name| (name.to_owned(), count(name))).collect())
}

#[test]
fn n3_several_events_have_each_its_samples_and_its_ledger() {
    let Some(program) = nested("n3_several") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "0.3"];
    for keeps in [&[][..], &["--keep-stacks"]] {
        let options = [&["-e", "cpu-clock,page-faults", "-e", "task-clock:u"][..], keeps].concat();
        let Some(ledger) = record(&data, &options, &command) else { return };
        let events = by_event(&ledger);
        let names: Vec<_> = events.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["cpu-clock", "page-faults", "task-clock:u"]);
        assert!(
            events.iter().all(|(_, written, classified)| written == classified && *written > 0)
        );
        let written: u64 = events.iter().map(|(_, written, _)| written).sum();
        assert_eq!(ledger["written"].as_u64(), Some(written));
        for (name, written, _) in &events {
            let shown = unwind(&["report", "--event", name, data.to_str().unwrap()]);
            let (shown, told) = (text(&shown.stdout), text(&shown.stderr));
            assert!(shown.contains(&format!("\n{written} samples:\n")), "{name}: {shown}{told}");
        }
        let shown = text(&unwind(&["report", data.to_str().unwrap()]).stdout);
        assert!(shown.starts_with("3 events:\n"), "{shown}");
        if let Some(counts) = perf_counts(&data) {
            let own: Vec<_> =
                events.iter().map(|(name, count, _)| (name.clone(), *count)).collect();
            assert_eq!(counts, own);
        }
    }
}

#[test]
fn n3_a_sample_is_taken_each_so_many_times() {
    let Some(program) = nested("n3_count") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "0.3"];
    let samples = |options: &[&str]| record(&data, options, &command)?["written"].as_u64();
    // Each page fault, and each second one.
    let Some(each) = samples(&["-e", "page-faults:u", "-c", "1", "-g"]) else { return };
    let second = samples(&["-e", "page-faults:u", "-c", "2"]).unwrap();
    // Where what is loaded is placed by chance, a run has some more faults than another.
    assert!(each >= 10 && second * 3 < each * 2 && second * 3 > each, "{each} {second}");
}

#[test]
fn n3_events_that_cannot_be_recorded_say_what_to_do() {
    let folder = support::scratch("n3_refused");
    let data = folder.join("perf.data");
    let fails = |options: &[&str], code: i32| {
        let mut arguments = vec!["record", "-o", data.to_str().unwrap()];
        arguments.extend(options);
        arguments.extend(["--", "true"]);
        let output = unwind(&arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {told}");
        assert!(!data.exists());
        told
    };
    assert!(fails(&["-e", "cycels"], 2).contains("there is no event cycels"));
    assert!(fails(&["-e", "{cycles,faults}"], 2).contains("one after the other"));
    assert!(fails(&["-e", "cpu-clock", "--filter", "a == 1"], 2).contains("is of no tracepoint"));
    assert!(fails(&["--off-cpu", "-e", "cpu-clock,faults"], 2).contains("beside one event"));
    let beside = fails(&["--off-cpu", "-e", "page-faults"], 2);
    assert!(beside.contains("page-faults is not sampled by time"), "{beside}");
    assert!(fails(&["-C", "100000"], 2).contains("numbers and ranges of CPUs"));
    assert!(fails(&["-u", "no such user"], 3).contains("there is no user no such user"));
    assert!(fails(&["--cgroup", "no/such/group"], 3).contains("there is no control group"));
    assert!(fails(&["-t", "2147483647"], 3).contains("no process 2147483647"));
    let has_pmu = Path::new("/sys/bus/event_source/devices/cpu").exists();
    if has_pmu {
        skip("there is a PMU");
    } else {
        for name in ["cycles", "instructions:u", "r1c2", "branches:pp"] {
            let output =
                unwind(&["record", "-e", name, "-o", data.to_str().unwrap(), "--", "true"]);
            let told = text(&output.stderr);
            if told.contains("lets no sampling event be opened") {
                return skip(&told);
            }
            assert_eq!(output.status.code(), Some(3), "{told}");
            assert!(told.contains(&format!("{name} cannot be recorded")), "{told}");
            assert!(told.contains("the event cpu-clock takes samples by a timer"), "{told}");
        }
        assert!(fails(&["-e", "cpu-clock,cycles"], 3).contains("cycles cannot be recorded"));
    }
}

#[test]
fn n3_time_that_an_event_leaves_out_is_not_missing() {
    let Some(program) = nested("n3_modes") else { return };
    let data = program.with_file_name("perf.data");
    let command = [program.to_str().unwrap(), "0.5"];
    for (event, is_told) in [("cpu-clock", true), ("cpu-clock:u", false), ("cpu-clock:k", false)] {
        let Some(ledger) = record(&data, &["-e", event], &command) else { return };
        assert_eq!(ledger["cpu_time"].is_object(), is_told, "{ledger}");
    }
}

#[test]
fn n3_samples_of_the_kernel_alone_need_the_right_to_take_them() {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    if paranoid.trim() != "2" || !nix::unistd::geteuid().is_root() {
        return skip("only root can take another user's place, and users may sample the kernel");
    }
    let Some(setpriv) = tool("setpriv") else { return };
    let folder = support::public_directory("n3_kernel");
    let copy = folder.join("unwind");
    support::copy_program(env!("CARGO_BIN_EXE_unwind"), &copy);
    for event in ["cpu-clock:k", "cpu-clock,page-faults:k"] {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
        command.args(["record", "-e", event, "--", "true"]).current_dir(&folder);
        let output = command.output().unwrap();
        let told = text(&output.stderr);
        assert!(told.contains("kernel.perf_event_paranoid of 1 or less"), "{told}");
        assert_eq!(output.status.code(), Some(4), "{told}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// Runs the command where tracefs is mounted, in a mount namespace of its own, or where it is not.
fn with_tracefs(is_mounted: bool, arguments: &[&str]) -> Option<Output> {
    let mount = if is_mounted { "mount -t tracefs none /sys/kernel/tracing" } else { ":" };
    let clear =
        "umount -l /sys/kernel/tracing /sys/kernel/debug/tracing /sys/kernel/debug 2> /dev/null";
    let script = format!("{clear}; {mount} || exit 77; exec \"$@\"");
    let mut command = Command::new(tool("unshare")?);
    command.args(["-m", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_unwind")]).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(77) || text(&output.stderr).contains("unshare failed") {
        skip("tracefs cannot be mounted here");
        return None;
    }
    Some(output)
}

#[test]
fn n3_tracepoints_are_recorded_with_their_filters() {
    let Some(program) = nested("n3_tracepoints") else { return };
    let data = program.with_file_name("perf.data");
    let (data_name, name) = (data.to_str().unwrap(), "sched:sched_switch");
    let samples = |filter: &[&str]| {
        let mut arguments = vec!["record", "--json", "-o", data_name, "-e", name];
        arguments.extend(filter);
        // It sleeps some times.
        arguments.extend(["--", "sh", "-c", "for i in 1 2 3 4; do sleep 0.01; done"]);
        let ledger = ledger_of(&arguments, with_tracefs(true, &arguments)?)?;
        ledger["written"].as_u64()
    };
    let Some(all) = samples(&[]) else { return };
    assert!(all >= 4, "{all}");
    // A thread that sleeps has state 1; none has this number.
    assert!(samples(&["--filter", "prev_state == 1"]).unwrap() >= 4);
    assert_eq!(samples(&["--filter", "prev_pid == 2147483647"]), Some(0));
    let fails = |is_mounted, options: &[&str]| {
        let mut arguments = vec!["record", "-o", data_name];
        arguments.extend(options);
        arguments.extend(["--", "true"]);
        let output = with_tracefs(is_mounted, &arguments).unwrap();
        assert_ne!(output.status.code(), Some(0), "{options:?}");
        text(&output.stderr)
    };
    let told = fails(true, &["-e", name, "--filter", "no_field == 1"]);
    assert!(told.contains("sched:sched_switch: the kernel does not take the filter"), "{told}");
    let told = fails(true, &["-e", "sched:no_such_event"]);
    assert!(told.contains("there is no tracepoint or probe sched:no_such_event"), "{told}");
    let told = fails(false, &["-e", name]);
    assert!(told.contains("tracefs, which is not mounted"), "{told}");
}

#[test]
fn n3_the_short_options_of_perf_say_whom_to_record() {
    let folder = support::scratch("n3_whom");
    let data = folder.join("perf.data");
    let (one, other) = (Busy::start(), Busy::start());
    let (id, other_id) = (one.id(), other.id());
    let processes = || {
        let output = unwind(&["script", "-F", "pid", data.to_str().unwrap()]);
        let text = text(&output.stdout);
        let mut ids: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        ids.sort();
        ids.dedup();
        ids
    };
    // When both have had 0.2 s of a CPU.
    let [mut ends, after] = [&one, &other].map(|busy| support::wait_for_cpu(busy.0.id(), 200));
    ends[2] += "; shift; exec \"$@\"";
    ends.extend(after);
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    for (options, has_other) in [
        (vec!["-p", &id], false),
        (vec!["-t", &id], false),
        (vec!["-p", &id, "-p", &other_id], true),
        (vec!["-a"], true),
        (vec!["-a", "-g"], true),
        (vec!["-u", "root"], true),
    ] {
        // The recording ends with the command, whose samples are not in it but for all processes.
        let mut arguments = vec!["record", "--json", "-e", "cpu-clock", "-F", "499"];
        arguments.extend(["-o", data.to_str().unwrap()]);
        arguments.extend(&options);
        arguments.push("--");
        arguments.extend(&ends);
        if !nix::unistd::Uid::effective().is_root() {
            return skip("these need root");
        }
        let Some(ledger) = ledger_of(&arguments, unwind(&arguments)) else { return };
        assert!(ledger["written"].as_u64().unwrap() > 10, "{options:?}: {ledger}");
        let seen = processes();
        assert!(seen.contains(&id), "{options:?}: {seen:?}");
        assert_eq!(seen.contains(&other_id), has_other, "{options:?}: {seen:?}");
    }
    // One CPU, whatever it executes: here a program that stays on it.
    let Some(taskset) = tool("taskset") else { return };
    let script = ["-c", "0", "sh", "-c", "while :; do :; done"];
    let _pinned = Busy(Command::new(taskset).args(script).stdin(Stdio::null()).spawn().unwrap());
    let output = unwind(&["record", "-C", "0", "-o", data.to_str().unwrap(), "--", "sleep", "0.3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let cpus = text(&unwind(&["script", "-F", "cpu", data.to_str().unwrap()]).stdout);
    let cpus: std::collections::BTreeSet<&str> =
        cpus.lines().map(str::trim).filter(|line| line.starts_with('[')).collect();
    assert_eq!(cpus.into_iter().collect::<Vec<_>>(), ["[000]"]);
}

#[test]
fn n3_a_control_group_is_recorded_alone() {
    let Some(unshare) = tool("unshare") else { return };
    let folder = support::scratch("n3_cgroup");
    let data = folder.join("perf.data");
    // In a hierarchy of the events' own, a process inside and one outside.
    let script = "mkdir -p g; mount -t cgroup -o perf_event none g 2> /dev/null || exit 77
        mkdir -p g/unwind-n3 || exit 77
        sh -c 'while :; do :; done' & in=$!
        sh -c 'while :; do :; done' & out=$!
        echo $in > g/unwind-n3/cgroup.procs
        \"$1\" record -o \"$2\" -e cpu-clock --cgroup g/unwind-n3 -- sleep 0.4; code=$?
        kill $in $out; wait $in $out 2> /dev/null
        rmdir g/unwind-n3; umount g
        echo $in; exit $code";
    let mut command = Command::new(unshare);
    command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_unwind")]).arg(&data);
    let output = command.current_dir(&folder).stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(77) || text(&output.stderr).contains("unshare failed") {
        return skip("there can be no control group of events here");
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let inside = text(&output.stdout).trim().to_owned();
    let script = text(&unwind(&["script", "-F", "pid", data.to_str().unwrap()]).stdout);
    let seen: std::collections::BTreeSet<&str> =
        script.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [inside]);
}
