//! The JSON of `unwind stack`: exactly the fields that `--help` describes.
#![cfg(test)]

mod support;

use serde_json::Value;
use support::*;

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn hex(value: &Value) -> u64 {
    let digits = value.as_str().unwrap().strip_prefix("0x").expect("hexadecimal text");
    u64::from_str_radix(digits, 16).unwrap()
}

#[test]
fn every_field_is_there_and_of_its_kind() {
    let Some(program) = compile("json", "echo.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &[]);

    assert_eq!(
        keys(&report),
        ["method", "no_stop", "process", "program", "schema", "threads", "warnings"]
    );
    assert_eq!((&report["schema"], &report["method"]), (&2.into(), &"auto".into()));
    assert_eq!((&report["process"], &report["program"]), (&target.id().into(), &"program".into()));
    assert!(report["warnings"].as_array().unwrap().is_empty());

    let [thread] = threads(&report) else { panic!("not one thread: {report:#}") };
    assert_eq!(keys(thread), ["arch", "end", "frames", "interpreted", "name", "signal", "thread"]);
    assert_eq!(thread["thread"], report["process"]);
    assert_eq!((&thread["name"], &thread["arch"]), (&"program".into(), &"x86-64".into()));
    assert_eq!((&thread["signal"], &thread["interpreted"]), (&Value::Null, &Value::Null));

    assert_eq!(keys(&thread["end"]), ["complete", "reason", "text"]);
    assert!(thread["end"]["complete"].is_boolean() && thread["end"]["text"].is_string());

    let frames = thread["frames"].as_array().unwrap();
    let mut last_sp = 0;
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(
            keys(frame),
            [
                "after_failure",
                "after_gap",
                "column",
                "exact",
                "file",
                "found_by",
                "fp_assumed",
                "function",
                "function_offset",
                "inlined",
                "line",
                "mangled",
                "object",
                "object_pc",
                "pc",
                "sp"
            ]
        );
        assert_eq!(frame["exact"], number == 0);
        for mark in ["after_failure", "after_gap", "fp_assumed"] {
            assert_eq!(frame[mark], false);
        }
        assert!(hex(&frame["sp"]) > last_sp, "{frame:#}");
        last_sp = hex(&frame["sp"]);
        assert_eq!(hex(&frame["pc"]) & 0xfff, hex(&frame["object_pc"]) & 0xfff);
        assert!(frame["object"].as_str().unwrap().starts_with('/'));
        assert!(frame["function_offset"].is_u64());
    }
    assert_eq!(frames[0]["found_by"], "registers");
    assert_eq!(frames[1]["found_by"], "sframe");
    assert_eq!(frames[0]["object"], program.to_str().unwrap());
}

#[test]
fn the_help_describes_each_field_and_each_value() {
    let help = String::from_utf8(run(["stack", "--help"]).stdout).unwrap();
    for word in [
        "schema",
        "process",
        "program",
        "method",
        "threads",
        "thread",
        "name",
        "arch",
        "signal",
        "frames",
        "pc",
        "sp",
        "exact",
        "found_by",
        "after_failure",
        "after_gap",
        "fp_assumed",
        "object",
        "object_pc",
        "function",
        "mangled",
        "function_offset",
        "file",
        "line",
        "column",
        "inlined",
        "end",
        "complete",
        "text",
        "reason",
        "warnings",
        "registers",
        "sframe",
        "fp",
        "code",
        "other",
        "outermost",
        "zero-return-address",
        "frame-pointer-zero",
        "max-frames",
        "no-row",
        "step",
        "table",
        "no-code",
        "not-walkable",
    ] {
        let is_word = |text: &str| text.trim_matches(|c: char| !c.is_alphanumeric()) == word;
        assert!(help.split_ascii_whitespace().any(is_word), "{word} is not described");
    }
}
