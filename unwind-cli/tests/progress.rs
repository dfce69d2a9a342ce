//! How far long work is: shown on a terminal that can, and nowhere else.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::*;
use test_support::{skip, tool};

/// Runs the command with a terminal, which `script` makes.
fn on_terminal(script: &Path, line: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(script);
    command.args(["-q", "-e", "-c", line, "/dev/null"]).stdin(Stdio::null());
    command.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    output
}

/// Checks that a line of the command shows a text on a terminal alone.
fn is_shown_on_a_terminal_alone(script: &Path, line: &str, shown: &str) {
    let text =
        |output: &Output| format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(output));
    let seen = text(&on_terminal(script, line, &[]));
    assert!(seen.contains(shown), "{seen:?}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let seen = text(&on_terminal(script, line, &[variable]));
        assert!(!seen.contains(shown), "{variable:?}: {seen:?}");
    }
    let piped = Command::new("sh").args(["-c", line]).env("TERM", "xterm").output().unwrap();
    assert!(piped.status.success() && !text(&piped).contains(shown), "{piped:?}");
}

#[test]
fn d14_reports_of_large_recordings_and_recordings_show_on_a_terminal_how_far_they_are() {
    let Some(script) = tool("script") else { return };
    let Some(program) = compile("progress", "clock.c", FRAME_POINTERS) else { return };
    let target = Target::start_unchecked(&program);
    let folder = program.parent().unwrap();
    let data = folder.join("perf.data");
    let unwind_path = env!("CARGO_BIN_EXE_unwind");
    let record = format!(
        "{unwind_path} record -F 499 --stack-bytes 65528 --keep-stacks --duration 1 --pid {} -o {}",
        target.id(),
        data.display()
    );
    let first = Command::new("sh").args(["-c", &record]).output().unwrap();
    if stderr(&first).contains("lets no sampling event be opened") {
        return skip(&stderr(&first));
    }
    is_shown_on_a_terminal_alone(&script, &record, "recording until Ctrl-C");
    drop(target);
    let mut len = std::fs::metadata(&data).unwrap().len();
    assert!(len > 100_000, "{len}");
    while len < 16 << 20 {
        len = double(&data);
    }
    for command in ["report", "script --json"] {
        let line = format!("{unwind_path} {command} {}", data.display());
        let line = if command == "report" { line } else { format!("{line} > /dev/null") };
        is_shown_on_a_terminal_alone(&script, &line, "░");
    }
}

/// Doubles the records of a recording. Returns how long it is then.
fn double(data: &Path) -> u64 {
    let mut bytes = std::fs::read(data).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The place and the length of the records in the header of the file.
    let (at, len) = (word(&bytes, 40), word(&bytes, 48));
    let (start, end) = (usize::try_from(at).unwrap(), usize::try_from(at + len).unwrap());
    let records = bytes[start..end].to_vec();
    bytes.truncate(end);
    bytes.extend(records);
    bytes[48..56].copy_from_slice(&(2 * len).to_le_bytes());
    // Without the sections after it: the ledger would be about half of them.
    bytes[72..104].fill(0);
    std::fs::write(data, &bytes).unwrap();
    bytes.len().try_into().unwrap()
}
