//! A stack from inside the dynamic linker's lazy binding: the frame that saves all
//! registers has its CFA on one of them.
#![cfg(test)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;
use test_support::{Compiler, tool};

/// A program that waits inside its first call of a library's function.
fn program(test: &str, flags: &[&str]) -> Option<PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let folder = scratch(test);
    let library = folder.join("libchosen_late.so");
    let program = folder.join("program");
    let compiler = Compiler::find(flags)?;
    // Only call frame information leads through these.
    let common = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let shared = [flags, &common, &["-shared", "-fPIC"]].concat();
    compiler.compile(&programs.join("chosen_late.c"), &library, &shared);
    let (name, path) = (library.to_str()?, format!("-Wl,-rpath,{}", folder.to_str()?));
    let linked = [flags, &common, &["-Wl,-z,lazy,--no-as-needed", "-fplt", name, &path]].concat();
    compiler.compile(&programs.join("binds_lazily.c"), &program, &linked);
    Some(program)
}

fn pcs(report: &serde_json::Value) -> Vec<String> {
    let [thread] = threads(report) else { panic!("{report:#}") };
    assert_eq!(thread["end"]["complete"], true, "{thread:#}");
    assert_eq!(functions_to_main(report).last(), Some(&"main"));
    let frames = thread["frames"].as_array().unwrap();
    frames.iter().map(|frame| frame["pc"].as_str().unwrap().to_owned()).collect()
}

/// The addresses that `eu-stack` prints.
fn eu_stack(target: &Target) -> Option<Vec<u64>> {
    let output = Command::new(tool("eu-stack")?).args(["-p", &target.id().to_string()]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let frames = text.lines().filter(|line| line.starts_with('#'));
    let pcs = frames.map(|line| line.split_whitespace().nth(1).unwrap().to_owned());
    Some(pcs.map(|pc| u64::from_str_radix(pc.trim_start_matches("0x"), 16).unwrap()).collect())
}

#[test]
fn a_stack_from_inside_lazy_binding_is_whole() {
    for (test, flags) in [("lazy_64", &[][..]), ("lazy_32", &["-m32"])] {
        let Some(program) = program(test, flags) else { continue };
        let target = Target::start(&program, &[]);
        for method in ["auto", "cfi"] {
            let report = report_of(&target, &["--method", method]);
            let ours: Vec<_> = pcs(&report);
            assert!(ours.len() > 6, "{report:#}");
            let Some(theirs) = eu_stack(&target) else { continue };
            let theirs: Vec<_> = theirs.into_iter().map(|pc| format!("{pc:#x}")).collect();
            assert_eq!(ours, theirs, "{test} by {method}");
        }
    }
}
