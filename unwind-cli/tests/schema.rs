//! The schemas in `docs/schema`, and what the command prints.
#![cfg(test)]

#[path = "support/schema.rs"]
mod schema;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use schema::Schema;
use serde_json::Value;
use support::*;
use test_support::{skip, tool};

fn json<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Value {
    let output = unwind(arguments).output().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    value.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

#[test]
fn d14_what_stack_and_explain_print_is_as_their_schemas_say() {
    let flags = ["-g", "-O1", "-fno-omit-frame-pointer"];
    let Some(program) = compile("schema_stack", "inlined.cpp", &flags) else { return };
    let target = Target::start(&program, &[]);
    let id = target.id().to_string();
    let schema = Schema::of("stack");
    let report = json(["stack", "--json", "--pid", &id]);
    let inlined = report["threads"][0]["frames"].as_array().unwrap();
    assert!(inlined.iter().any(|frame| !frame["inlined"].as_array().unwrap().is_empty()));
    schema.check(&report, &[]);
    for method in ["sframe", "cfi", "cfi-sframe", "fp"] {
        schema
            .check(&json(["stack", "--json", "--no-lines", "--method", method, "--pid", &id]), &[]);
    }
    schema.check(&json(["stack", "--json", "--no-stop", "--no-lines", "--pid", &id]), &[]);
    Schema::of("explain").check(&json(["explain", "--json", "--pid", &id]), &["rbp…", "rsp…"]);
}

#[test]
fn d14_what_is_told_of_a_recording_is_as_the_schemas_say() {
    let Some(program) = compile("schema_record", "nested.c", FRAME_POINTERS) else { return };
    let folder = program.parent().unwrap();
    let data = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let ledger = Schema::of("ledger");
    let optional = ["cpu_time", "off_cpu", "walks", "no-row…", "not-code…", "gap…", "step…"];
    let in_kernel = ["executed-another…", "thread-ended…", "stack-not-resident…", "no-room…"];
    let optional = [&optional[..], &in_kernel].concat();
    for (name, option) in
        [("kept", "--keep-stacks"), ("waits", "--off-cpu"), ("small", "--compression-level=1")]
    {
        let mut command = unwind(["record", "--json", option, "-o", &data(name), "--"]);
        let output = command.arg(&program).arg("0.3").output().unwrap();
        if stderr(&output).contains("lets no sampling event be opened") {
            return skip(&stderr(&output));
        }
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = told.lines().last().unwrap_or_else(|| panic!("{name}: {}", stderr(&output)));
        ledger.check(&serde_json::from_str(line).unwrap(), &optional);
    }
    let speedscope = json(["report", "--format", "speedscope", &data("waits")]);
    ledger.check(&speedscope["ledger"], &optional);

    let explain = Schema::of("explain");
    explain.check(&json(["explain", "--json", &format!("{}@10", data("kept"))]), &["rbp…", "rsp…"]);
    let recorded = json(["explain", "--json", &format!("{}@10", data("small"))]);
    assert!(recorded["frames"][0]["kernel"].is_boolean(), "{recorded:#}");
    explain.check(&recorded, &[]);

    let schema = Schema::of("script");
    let kinds = check_lines(&schema, &["script", "--json", &data("kept")]);
    assert_eq!(kinds, ["end", "recording", "sample"]);
    let Some(_) = tool("perf") else { return };
    Schema::of("verify").check(&json(["verify", "--json", &data("kept")]), &[]);
}

/// Checks each line. Returns the kinds that there are.
fn check_lines(schema: &Schema, arguments: &[&str]) -> Vec<String> {
    let output = run(arguments);
    let mut kinds = BTreeSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines().take(400) {
        let line: Value = serde_json::from_str(line).unwrap();
        kinds.insert(line["type"].as_str().unwrap().to_owned());
        schema.check(&line, &["from"]);
    }
    kinds.into_iter().collect()
}

#[test]
fn d14_lines_of_recordings_of_perf_are_as_the_schema_says() {
    let schema = Schema::of("script");
    for name in ["pfork.data", "pmig.data"] {
        let file = perf_fixture(name);
        let file = file.to_str().unwrap();
        check_lines(&schema, &["script", "--json", file]);
        let kinds = check_lines(&schema, &["script", "--json", "--no-merge-callchains", file]);
        assert!(kinds.iter().any(|kind| kind == "stack"), "{kinds:?}");
    }
}

#[test]
fn d14_what_is_told_of_tables_is_as_the_schemas_say() {
    let file = |name: &str| fixture(name).to_str().unwrap().to_owned();
    let (drap, recur) = (file("v3/x86_64/drap.O2-omit.exe"), file("v3/x86_64/recur.O2-omit.exe"));
    for program in [&drap, &recur] {
        Schema::of("sframe-dump").check(&json(["sframe", "dump", "--json", program]), &[]);
        let sections = [".text…", ".eh_frame…"];
        Schema::of("sframe-stat").check(&json(["sframe", "stat", "--json", program]), &sections);
        Schema::of("sframe-check").check(&json(["sframe", "check", "--json", program]), &[]);
        let found = json(["sframe", "find", "--json", program, "main", "0x1"]);
        Schema::of("sframe-find").check(&found, &[]);
    }
    let difference = json(["sframe", "diff", "--json", &drap, &recur]);
    assert!(!difference["functions"].as_array().unwrap().is_empty());
    Schema::of("sframe-diff").check(&difference, &["entry"]);
    // A table that is damaged has a form of its own.
    let bytes = fs::read(file("v3/x86_64/drap.O2-omit.exe.sframe.bin")).unwrap();
    let folder = scratch("schema_damaged");
    for at in (28..bytes.len()).step_by(5) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        let path = folder.join("damaged");
        fs::write(&path, &damaged).unwrap();
        let output = unwind(["sframe", "dump", "--raw", "--json"]).arg(&path).output().unwrap();
        let Ok(dump) = serde_json::from_slice(&output.stdout) else { continue };
        Schema::of("sframe-dump").check(&dump, &[]);
    }
}

#[test]
fn d14_each_schema_is_named_where_its_json_is_described() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.strip_suffix(".json").unwrap();
        let command = if name == "ledger" { "record" } else { name };
        let help = run(command.split('-').chain(["--help"])).stdout;
        let help = String::from_utf8_lossy(&help);
        assert!(help.contains(&format!("docs/schema/{file}")), "{file}");
    }
}
