//! Where callers may be missing in a stack, the command says so.
#![cfg(test)]

mod support;

use support::*;

fn start(argument: &str) -> Option<Target> {
    let program = compile(&format!("bare_code_{argument}"), "bare_code.c", FRAME_POINTERS)?;
    Some(Target::start(&program, &[argument]))
}

#[test]
fn a3_a8_a_caller_that_a_frame_pointer_leads_past_makes_the_stack_incomplete() {
    let Some(target) = start("none") else { return };
    let report = report_of(&target, &[]);
    // The frame pointer of the generated code is that of `skipped`, whose caller is `main`.
    assert_eq!(functions_to_main(&report), ["park", "?", "main"]);
    let thread = &threads(&report)[0];
    let gaps = thread["frames"].as_array().unwrap().iter().map(|frame| &frame["after_gap"]);
    let marked: Vec<_> = gaps.enumerate().filter(|(_, gap)| **gap == true).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0].0, 2, "the mark is where the caller is missing");
    assert_eq!(thread["end"]["complete"], false);
    assert_eq!(thread["end"]["reason"], "outermost");

    let text = run(["stack", "--pid", &target.id().to_string()]).stdout;
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let mark = lines.iter().position(|line| *line == "callers may be missing here").unwrap();
    assert!(lines[mark - 1].starts_with("#1 ") && lines[mark + 1].starts_with("#2 "), "{text}");
    let end = lines.last().unwrap();
    assert!(end.starts_with("incomplete: ") && end.contains("missing at 1 place"), "{text}");
}

#[test]
fn a3_a_frame_pointer_is_no_guess_where_the_user_declares_that_code_keeps_them() {
    let Some(target) = start("frame") else { return };
    let expected = ["park", "?", "skipped", "main"];
    let guessed = report_of(&target, &[]);
    assert_eq!(functions_to_main(&guessed), expected);
    assert_eq!(threads(&guessed)[0]["end"]["complete"], false);
    let trusted = report_of(&target, &["--trust-fp"]);
    assert_eq!(functions_to_main(&trusted), expected);
    assert_eq!(threads(&trusted)[0]["end"]["complete"], true);
    let frames = threads(&trusted)[0]["frames"].as_array().unwrap();
    assert!(frames.iter().all(|frame| frame["after_gap"] == false), "{trusted:#}");
}
