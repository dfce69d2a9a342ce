//! Inlined functions in reports.

use std::fs;
use std::path::PathBuf;

use test_support::Compiler;

use crate::page::data_of;
use crate::{record, report, report_with, support, text};

/// A recording of a program that spends its time in `inner`, which is inlined in `outer`, which
/// is inlined in `work`.
fn recording(test: &str, options: &[&str]) -> Option<PathBuf> {
    let compiler = Compiler::find(&["-O1"])?;
    let scratch = support::scratch(test);
    let source = scratch.join("source.c");
    let inlined = "static inline __attribute__((always_inline)) void";
    let text = format!(
        "#include <stdlib.h>\n#include <time.h>\nstatic volatile unsigned long sink;\n\
         {inlined} inner(void) {{ for (int i = 0; i < 100000; i++) sink = sink * 3 + i; }}\n\
         {inlined} outer(void) {{ inner(); }}\n\
         __attribute__((noinline)) static void work(void) {{ outer(); }}\n\
         int main(int argc, char **argv) {{\n\
         clock_t end = clock() + (clock_t)(atof(argv[argc - 1]) * CLOCKS_PER_SEC);\n\
         while (clock() < end) work();\n}}\n"
    );
    fs::write(&source, text).unwrap();
    let program = scratch.join("program");
    compiler.compile(&source, &program, options);
    record(&program, &[])
}

/// How many samples have stacks that end like this in the program, whatever the kernel does there, and
/// all.
fn ending(folded: &[u8], end: &str) -> (u64, u64) {
    let (mut ending, mut all) = (0, 0);
    for line in text(folded).lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        all += count;
        let frames: Vec<&str> = stack.split(';').filter(|name| !name.ends_with("_[k]")).collect();
        ending += if frames.join(";").ends_with(end) { count } else { 0 };
    }
    (ending, all)
}

#[test]
fn d15_inlined_functions_have_frames_of_their_own() {
    let Some(data) = recording("report_inlined", &["-g"]) else { return };
    let with = report(&data, "folded");
    let (inlined, all) = ending(&with, ";main;work;outer;inner");
    assert!(inlined * 10 > all * 9, "{inlined} of {all}");
    // A sample may be at the function's own instructions, too.
    let of_work = inlined + ending(&with, ";main;work;outer").0 + ending(&with, ";main;work").0;
    let without = report_with(&data, &["--format", "folded", "--no-inlined"]);
    assert_eq!(ending(&without, ";main;work"), (of_work, all));
    // They are coloured as what they are, and the line is that of the innermost one.
    let page = data_of(&report(&data, "html"));
    let ways = page["found"].as_array().unwrap();
    let way = ways.iter().position(|way| way["word"] == "inlined").unwrap();
    // Others have them below a kernel's frame.
    assert!(ways[way]["frames"].as_u64() >= Some(2 * inlined));
    let rows = page["lines"]["rows"].as_array().unwrap();
    let row = rows.iter().max_by_key(|row| row[3].as_u64()).unwrap();
    let frame = usize::try_from(row[0].as_u64().unwrap()).unwrap();
    assert_eq!((page["frames"][frame][0].as_str(), row[2].as_u64()), (Some("inner"), Some(4)));
    // Samples stay where they are in time.
    let of_cells: u64 =
        page["cells"][3].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(of_cells, all);
    // The self time of a function is that of its inlined code, too.
    let table = text(&report(&data, "text"));
    let own = |name: &str| {
        let line = table.lines().find(|line| line.contains(&format!("  {name} ("))).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    assert!(own("inner") > 50.0 && own("work") < 10.0, "{table}");
    // Less than that by what the kernel did there.
    let folded = text(&report(&data, "folded"));
    let is_own = |line: &&str| line.contains(";inner ");
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let in_inner: u64 = folded.lines().filter(is_own).map(count).sum();
    let tenths = (in_inner * 1000 + all / 2) / all;
    assert_eq!(
        format!("{:.1}", own("inner")),
        format!("{}.{}", tenths / 10, tenths % 10),
        "{table}"
    );
}

#[test]
fn d15_without_debug_information_all_is_of_the_function_that_has_the_code() {
    let Some(data) = recording("report_not_inlined", &[]) else { return };
    let (own, all) = ending(&report(&data, "folded"), ";main;work");
    assert!(own * 10 > all * 9, "{own} of {all}");
}
