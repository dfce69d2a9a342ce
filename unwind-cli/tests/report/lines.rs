//! The lines of the source in the page.

use std::fs;
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde_json::Value;
use test_support::Compiler;

use crate::page::{data_of, shown};
use crate::{record, report, report_with, support};

/// A recording of a program that is at `#line` 7 of a file of this name nearly always.
fn recording(test: &str, named: &Path) -> Option<PathBuf> {
    let compiler = Compiler::find(&["-g", "-O1"])?;
    let scratch = support::scratch(test);
    let source = scratch.join("source.c");
    let text = format!(
        "#include <stdlib.h>\n#include <time.h>\nstatic volatile unsigned long sink;\n\
         #line 5 \"{}\"\n\
         __attribute__((noinline)) static void busy(void) {{\n\
         \n\
         for (int i = 0; i < 100000; i++) sink = sink * 3 + i;\n\
         }}\n\
         int main(int argc, char **argv) {{\n\
         clock_t end = clock() + (clock_t)(atof(argv[argc - 1]) * CLOCKS_PER_SEC);\n\
         while (clock() < end) busy();\n}}\n",
        named.display()
    );
    fs::write(&source, text).unwrap();
    let program = scratch.join("program");
    compiler.compile(&source, &program, &[]);
    record(&program, &[])
}

/// The path and the text of the source of the line with most samples, and that line.
fn hottest(page: &[u8]) -> (Value, u64) {
    let data = data_of(page);
    let rows = data["lines"]["rows"].as_array().unwrap();
    let row = rows.iter().max_by_key(|row| row[3].as_u64()).unwrap();
    let frame = usize::try_from(row[0].as_u64().unwrap()).unwrap();
    assert_eq!(data["frames"][frame][0], "busy", "{row}");
    let source = usize::try_from(row[1].as_u64().unwrap()).unwrap();
    (data["lines"]["sources"][source].clone(), row[2].as_u64().unwrap())
}

#[test]
fn d15_a_page_has_the_lines_of_a_function_with_their_samples_and_text() {
    let scratch = support::scratch("report_lines_source");
    let named = scratch.join("<b>.c");
    let lines = ["", "1", "2", "3", "4", "5", "6", "7\t\"\\n</script><i>\u{1b}[1m", "8", "9"];
    fs::write(&named, lines[1..].join("\n")).unwrap();
    let Some(data) = recording("report_lines", &named) else { return };
    let page = report(&data, "html");
    let (source, line) = hottest(&page);
    assert_eq!((line, source["path"].as_str()), (7, named.to_str()));
    let text = source["text"].as_array().unwrap();
    let at = |line: u64| text.iter().find(|entry| entry[0] == line).map(|entry| &entry[1]);
    assert_eq!(at(7).unwrap(), "7    \"\\n</script><i>\\x1b[1m");
    assert_eq!((at(4).unwrap(), at(1)), (&Value::from("4"), None));
    assert_eq!(source["newer"], false);
    assert!(memmem::find(&page, b"<i>\\").is_none() && !page.contains(&0x1b));
    // Each sample of the function is at one line.
    let all = data_of(&page);
    let of_lines = |row: &Value| row[3].as_u64().unwrap();
    let known: u64 = all["lines"]["rows"].as_array().unwrap().iter().map(of_lines).sum();
    let of_nodes: u64 =
        all["nodes"][2].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    assert!(
        known + all["lines"]["without"].as_u64().unwrap() <= of_nodes && known > 100,
        "{known}"
    );

    let without = report_with(&data, &["--format", "html", "--no-source"]);
    let (source, line) = hottest(&without);
    assert_eq!((line, &source["text"]), (7, &Value::Array(Vec::new())));

    let file = data.with_file_name("page.html");
    fs::write(&file, &page).unwrap();
    let Some(dom) = shown(&file, "view=lines&search=busy") else { return };
    let (_, list) = dom.split_once(" id=\"lines\">").unwrap();
    assert!(list.contains("<code>7    \"\\n&lt;/script&gt;&lt;i&gt;\\x1b[1m</code>"), "{list}");
    assert!(list.contains("class=\"file\">4</td>"), "{list}");
    // Now it is another text than that of the program.
    fs::write(&named, "x").unwrap();
    assert_eq!(hottest(&report(&data, "html")).0["newer"], true);
}

#[test]
fn c9_a_page_has_no_text_of_files_that_are_not_called_as_sources_are() {
    let scratch = support::scratch("report_lines_secret");
    let named = scratch.join("secret");
    fs::write(&named, "secret\n".repeat(20)).unwrap();
    let Some(data) = recording("report_lines_other", &named) else { return };
    let (source, line) = hottest(&report(&data, "html"));
    assert_eq!((line, source["path"].as_str()), (7, named.to_str()));
    assert_eq!(source["text"], Value::Array(Vec::new()));
}
