//! The example that walks a core file, beside gdb.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "../examples/core_file.rs"]
#[allow(dead_code, reason = "its main function")]
mod example;

use std::path::Path;
use std::process::Command;

use test_support::{Compiler, skip, tool};

const PROGRAM: &str = "
#include <signal.h>
#include <stdlib.h>
static volatile int sink;
static void handler(int signal) { sink = signal; abort(); }
static __attribute__((noinline)) int nested(int depth) {
    return depth ? nested(depth - 1) + sink : raise(SIGUSR1);
}
int main(void) { signal(SIGUSR1, handler); return nested(5); }
";

/// Without frames that gdb makes of debug information: inlined functions and tail calls.
const FRAMES: &str = "
python
frame = gdb.newest_frame()
while frame:
    if frame.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME): print('pc', hex(frame.pc()))
    frame = frame.older()
end
";

/// The addresses that lines begin with, after this word.
fn pcs(text: &str, word: &str) -> Vec<u64> {
    let of_line = |line: &str| {
        let digits = line.strip_prefix(word)?.strip_prefix("0x")?.split_whitespace().next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn a_core_file_has_the_frames_that_gdb_finds() {
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let (Some(gdb), Some(compiler)) = (tool("gdb"), Compiler::find(&flags)) else { return };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("core_file");
    std::fs::create_dir_all(&directory).unwrap();
    let [source, program, core, script] =
        ["core.c", "program", "core", "frames.gdb"].map(|name| directory.join(name));
    std::fs::write(&source, PROGRAM).unwrap();
    std::fs::write(&script, FRAMES).unwrap();
    compiler.compile(&source, &program, &[]);
    let mut command = Command::new(gdb);
    command.args([
        "-nx",
        "-batch",
        "-ex",
        "set backtrace past-main on",
        "-ex",
        "handle SIGUSR1 nostop",
    ]);
    command.args(["-ex", "set backtrace past-entry on", "-ex", "run", "-ex"]);
    command.arg(format!("generate-core-file {}", core.display())).arg("-x").arg(&script);
    let output = command.arg(&program).output().unwrap();
    let gdbs = pcs(&String::from_utf8_lossy(&output.stdout), "pc ");
    if gdbs.is_empty() {
        return skip(&format!("gdb runs no program: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut text = Vec::new();
    example::write_stack(&std::fs::read(&core).unwrap(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(pcs(&text, ""), gdbs, "{text}");
    assert!(gdbs.len() > 12 && text.ends_with("complete: true\n"), "{text}");
}
