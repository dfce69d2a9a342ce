//! Stacks of code whose call frame information is expressions that no row can say.
#![cfg(test)]

mod support;

use support::*;

/// The functions from the one that waits or works to `main`.
const WAITING: [&str; 12] = [
    "end", "aligned", "on_high", "switched", "on_low", "switched", "third", "chained", "second",
    "aligned", "first", "main",
];
const WORKING: [&str; 8] =
    ["end", "aligned", "third", "chained", "second", "aligned", "first", "main"];

#[test]
fn u2_u3_a_stack_leads_through_expressions_and_other_stacks_by_their_rules() {
    for flags in [&["-O1"][..], &["-O1", "-fomit-frame-pointer", "-no-pie"]] {
        let flags = [flags, &["-fno-optimize-sibling-calls"]].concat();
        let Some(program) = compile("expressions", "expressions.c", &flags) else { return };
        let target = Target::start(&program, &[]);
        for method in ["auto", "cfi"] {
            let report = report_of(&target, &["--method", method]);
            let thread = &threads(&report)[0];
            let names = functions(thread);
            let at = names.iter().position(|&name| name == "end").unwrap();
            assert_eq!(names.get(at..at + WAITING.len()), Some(&WAITING[..]), "{method}");
            assert_eq!(thread["end"]["complete"], true, "{method}: {}", thread["end"]);
        }
    }
}

#[test]
fn u2_recorded_stacks_lead_through_expressions() {
    let flags = ["-O1", "-fno-optimize-sibling-calls"];
    let Some(program) = compile("expressions-record", "expressions.c", &flags) else { return };
    let data = program.with_file_name("data");
    let [data, program] = [&data, &program].map(|path| path.to_str().unwrap());
    // It is ended when it has had a second of a CPU.
    let command = ["sh", "-c", "ulimit -t 1; exec \"$0\" works", program];
    let recorded = run(["record", "--rate", "499", "-o", data, "--"].iter().chain(&command));
    if stderr(&recorded).contains("lets no sampling event be opened") {
        return test_support::skip(&stderr(&recorded));
    }
    let text = run(["script", data]).stdout;
    let text = String::from_utf8_lossy(&text);
    let stacks: Vec<_> = text.split("\n\n").filter(|stack| stack.contains(" end+")).collect();
    assert!(stacks.len() > 50, "{text}");
    for stack in stacks {
        let names: Vec<_> = stack
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1)?.split_once('+'))
            .map(|(name, _)| name)
            // The kernel may have interrupted it.
            .skip_while(|&name| name != "end")
            .collect();
        assert_eq!(names.get(..WORKING.len()), Some(&WORKING[..]), "{stack}");
    }
}
