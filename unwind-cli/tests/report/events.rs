//! Recordings of several events: what one counts is never added to what another does.

use std::path::Path;

use test_support::perf_record;

use super::*;

/// A recording by perf of a program whose time and page faults are counted.
fn of_perf(test: &str) -> Option<PathBuf> {
    let perf = tool("perf")?;
    let data = support::scratch(test).join("perf.data");
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; ls -R /usr > /dev/null";
    let mut command = Command::new(perf);
    command.args(["record", "-g", "-F", "999", "-e", "cpu-clock", "-e", "page-faults", "-o"]);
    let output = perf_record(command.arg(&data).args(["--", "sh", "-c", script]));
    if !output.status.success() {
        skip("perf cannot record here");
        return None;
    }
    Some(data)
}

/// How many samples of each event perf has in a recording.
fn counts(data: &Path) -> [(String, u64); 2] {
    let mut command = Command::new("perf");
    let output = command.args(["script", "-F", "event", "-G", "-i"]).arg(data).output().unwrap();
    let text = text(&output.stdout);
    ["cpu-clock", "page-faults"].map(|name| {
        let lines = text.lines().filter(|line| line.trim().trim_end_matches(':') == name);
        (name.to_owned(), u64::try_from(lines.count()).unwrap())
    })
}

/// The sum of a format's samples.
fn sum_of_folded(data: &Path, options: &[&str]) -> u64 {
    folded_with(data, options).iter().map(|(_, count)| count).sum()
}

#[test]
fn n2_the_text_has_a_table_for_each_event_and_their_counts() {
    let Some(data) = of_perf("n2_text") else { return };
    let counts = counts(&data);
    assert!(counts.iter().all(|&(_, count)| count > 0), "{counts:?}");
    let shown = text(&report_with(&data, &[]));
    assert!(shown.starts_with("2 events:\n   samples  event\n"), "{shown}");
    let mut parts = shown.split("    self   total  function\n");
    let list = parts.next().unwrap();
    for (name, count) in &counts {
        assert!(list.contains(&format!("{count:>10}  {name}\n")), "{list}");
    }
    // The ledger at the end of each part is of that event alone.
    for ((name, count), part) in counts.iter().zip(parts) {
        assert!(part.contains(&format!("\n{count} samples:\n")), "{name}: {part}");
    }
    // Each by itself is what it is if it is asked for.
    for (name, count) in &counts {
        let shown = text(&report_with(&data, &["--event", name]));
        assert!(shown.starts_with("    self   total  function\n"), "{shown}");
        assert!(shown.contains(&format!("\n{count} samples:\n")), "{name}: {shown}");
    }
}

#[test]
fn n2_other_formats_are_of_the_event_that_is_chosen() {
    let Some(data) = of_perf("n2_formats") else { return };
    let path = data.to_str().unwrap();
    for (name, count) in counts(&data) {
        assert_eq!(sum_of_folded(&data, &["--event", &name]), count, "{name}");
    }
    let formats = ["folded", "svg", "html", "speedscope", "firefox", "pprof", "otlp"];
    for format in formats {
        let output = unwind(&["report", "--format", format, path]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{format}: {told}");
        assert!(told.contains("choose one by --event: cpu-clock ("), "{told}");
        assert!(told.contains(", page-faults ("), "{told}");
        assert!(output.stdout.is_empty(), "{format}");
        let chosen = report_with(&data, &["--format", format, "--event", "page-faults"]);
        assert!(!chosen.is_empty(), "{format}");
    }
    for format in ["svg", "html"] {
        let chosen = text(&report_with(&data, &["--format", format, "--event", "page-faults"]));
        assert!(chosen.contains("perf.data: page-faults"), "{format}");
    }
    let output = unwind(&["report", "--diff", path, path]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let output = unwind(&["report", "--event", "page-faults", "--diff", path, path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = unwind(&["report", "--event", "cycles", path]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("there is no event cycles") && told.contains("cpu-clock ("), "{told}");
}

#[test]
fn n2_the_script_of_one_event_has_its_samples_alone() {
    let Some(data) = of_perf("n2_script") else { return };
    let path = data.to_str().unwrap();
    let run = |options: &[&str]| unwind(&[&["script"], options, &[path]].concat());
    let lines = |options: &[&str], is_wanted: &dyn Fn(&str) -> bool| {
        let output = run(options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().filter(|line| is_wanted(line)).count()
    };
    for (name, count) in counts(&data) {
        let count = usize::try_from(count).unwrap();
        let options = ["-F", "event", "--event", &name];
        assert_eq!(lines(&options, &|line| line.trim().ends_with(':')), count, "{name}");
        assert_eq!(lines(&options, &|line| line.trim() == format!("{name}:")), count, "{name}");
        let json = lines(&["--json", "--event", &name], &|line| line.contains("\"sample\""));
        assert_eq!(json, count, "{name}");
    }
    for json in [&[][..], &["--json"]] {
        let output = run(&[&["--event", "cycles"], json].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("there is no event cycles"), "{told}");
        assert!(told.contains("cpu-clock (") && told.contains("page-faults ("), "{told}");
    }
}
