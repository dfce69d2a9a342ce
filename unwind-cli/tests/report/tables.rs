//! Tables of many recordings, as DuckDB reads them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use test_support::{skip, tool};

use crate::{folded, recording, support, text, unwind};

/// Has DuckDB run statements from its standard input, apart by lines of `---`, and prints the
/// rows of each, an object a row, as a list a line.
const RUN: &str = "
import duckdb, json, sys
connection = duckdb.connect()
for statement in sys.stdin.read().split('\\n---\\n'):
    for part in connection.extract_statements(statement):
        result = connection.execute(part)
    names = [column[0] for column in result.description or []]
    rows = [dict(zip(names, row)) for row in result.fetchall()]
    print(json.dumps(rows, default=str))
";

/// A Python that has DuckDB.
fn python() -> Option<PathBuf> {
    let python = match std::env::var_os("UNWIND_PYTHON") {
        Some(python) => python.into(),
        None => tool("python3")?,
    };
    let has_duckdb = Command::new(&python).args(["-c", "import duckdb, pytz"]).output();
    if !has_duckdb.is_ok_and(|output| output.status.success()) {
        skip("no DuckDB for Python");
        return None;
    }
    Some(python)
}

/// What DuckDB answers to each statement, in a folder with `profiles`.
fn ask(python: &Path, folder: &Path, statements: &[String]) -> Vec<Vec<Value>> {
    let mut command = Command::new(python);
    command.args(["-c", RUN]).current_dir(folder).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, statements.join("\n---\n").as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The statements of the page in `docs`.
fn questions() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fleet.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```sql\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}

/// Puts a recording into the tables of a folder.
fn put(data: &Path, folder: &Path, labels: &[&str]) {
    let profiles = folder.join("profiles");
    let (data, profiles) = (data.to_str().unwrap(), profiles.to_str().unwrap());
    let arguments = ["report", "--format", "parquet", "-o", profiles, data];
    let output = unwind(&[&arguments, labels].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
}

/// Records the program with two parts.
fn two_parts(test: &str, arguments: &[&str]) -> Option<PathBuf> {
    let program = support::compile(test, "two_parts.c", &["-O2", "-fomit-frame-pointer"])?;
    let data = program.with_file_name("perf.data");
    let options = ["record", "-o", data.to_str().unwrap(), "--", program.to_str().unwrap()];
    let output = unwind(&[&options, arguments].concat());
    let told = text(&output.stderr);
    if told.contains("lets no sampling event be opened") {
        skip(&told);
        return None;
    }
    assert!(output.status.success(), "{told}");
    Some(data)
}

fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn d15_the_questions_of_a_fleet_are_answered_by_duckdb() {
    let Some(python) = python() else { return };
    let before = two_parts("report_fleet_before", &["0.5"]);
    let before_again = two_parts("report_fleet_before_again", &["0.5"]);
    let after = two_parts("report_fleet_after", &["0.5", "more"]);
    let after_again = two_parts("report_fleet_after_again", &["0.5", "more"]);
    let cut = recording("report_fleet_cut", b"nested", &["--stack-bytes", "256"]);
    let options = ["--ring-kib", "16", "--stack-bytes", "12288", "-F", "20000"];
    let lost = recording("report_fleet_lost", b"nested", &options);
    let recordings = [before, before_again, after, after_again, cut, lost];
    if recordings.contains(&None) {
        return;
    }
    let recordings = recordings.map(Option::unwrap);
    let [before, before_again, after, after_again, cut, lost] = &recordings;
    let folder = before.parent().unwrap();
    put(before, folder, &["--release", "1.0", "--host", "../a b"]);
    put(before_again, folder, &["--release", "1.0", "--host", "../a b"]);
    put(after, folder, &["--release", "1.1"]);
    put(after_again, folder, &["--release", "1.1"]);
    put(cut, folder, &["--host", "c"]);
    put(lost, folder, &["--host", "d"]);
    // Once more, as a whole it is there once.
    put(after, folder, &["--release", "1.1"]);

    let own = "SELECT recording, sum(samples) AS samples FROM samples GROUP BY recording";
    let told = "SELECT recording, sum(samples) AS samples FROM ledger GROUP BY recording";
    let hosts = "SELECT DISTINCT host FROM ledger ORDER BY host";
    let days = "SELECT count(*) AS n FROM ledger WHERE CAST(start AT TIME ZONE 'UTC' AS DATE) IS DISTINCT FROM day";
    let now = "SELECT count(*) AS n FROM ledger WHERE abs(epoch(start) - epoch(now())) > 600";
    let extra = [own, told, hosts, days, now].map(str::to_owned);
    let statements = [questions(), extra.to_vec()].concat();
    let answers = ask(&python, folder, &statements);
    let [_, top, slower, incomplete, without, busy, own, told, hosts, days, now] =
        answers.as_slice()
    else {
        panic!("the page has other questions: {}", answers.len())
    };

    // On a busy machine some of the kernel's functions take more.
    let is_of_program =
        |row: &&Value| row["file"].as_str().is_some_and(|file| file.starts_with('/'));
    let names = top.iter().filter(is_of_program).map(|row| row["name"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert!(["stays", "innermost"].contains(&names[0]), "{top:?}");
    assert!(top.iter().all(|row| number(&row["self"]) <= number(&row["total"]) + 1e-9));
    assert_eq!(slower[0]["name"], "grows", "{slower:?}");
    assert!(number(&slower[0]["deviations"]) > 5.0, "{slower:?}");
    assert!(number(&slower[0]["after"]) > number(&slower[0]["before"]) + 10.0, "{slower:?}");
    let is_cut = |row: &&Value| row["host"] == "c" && row["reason"] == "stack-copy-too-short";
    let row = incomplete.iter().find(is_cut).unwrap_or_else(|| panic!("{incomplete:?}"));
    assert!(number(&row["share"]) > 80.0, "{row}");
    assert_eq!(without[0]["why"], "[incomplete: stack-copy-too-short]", "{without:?}");
    assert!(without[0]["file"].as_str().unwrap().starts_with('/'), "{without:?}");
    assert!(!busy.is_empty());

    // Each sample is there once, and the sums are those of the ledgers.
    let sums = |rows: &[Value]| -> Vec<(String, u64)> {
        let one = |row: &Value| (row["recording"].to_string(), number(&row["samples"]));
        let mut sums: Vec<_> = rows.iter().map(one).map(|(id, n)| (id, n.round())).collect();
        sums.sort_by(|a, b| a.0.cmp(&b.0));
        sums.into_iter().map(|(id, n)| (id, format!("{n}").parse().unwrap())).collect()
    };
    assert_eq!(sums(own), sums(told));
    let all: u64 =
        recordings.iter().flat_map(|data| folded(data).into_iter().map(|(_, count)| count)).sum();
    assert_eq!(sums(own).iter().map(|(_, n)| n).sum::<u64>(), all);
    assert_eq!(own.len(), recordings.len());
    // The hosts are those that were named, and that of the recording.
    let names: Vec<&str> = hosts.iter().map(|row| row["host"].as_str().unwrap()).collect();
    assert!(names.len() == 4 && names.contains(&"../a b") && names.contains(&"c"), "{names:?}");
    let own_name = text(&fs::read("/proc/sys/kernel/hostname").unwrap());
    assert!(names.contains(&own_name.trim()), "{names:?}");
    assert_eq!((&days[0]["n"], &now[0]["n"]), (&0.into(), &0.into()));
}

#[test]
fn d15_tables_need_a_folder() {
    let output = unwind(&["report", "--format", "parquet", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let Some(data) = recording("report_folder", b"nested", &[]) else { return };
    let data = data.to_str().unwrap();
    // Where a folder should be is a file.
    let output = unwind(&["report", "--format", "parquet", "-o", data, data]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
