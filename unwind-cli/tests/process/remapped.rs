//! Code that a program has moved to memory without a file, at the same addresses.

use super::*;

/// No function keeps a frame pointer: without tables a walk ends or guesses.
const TABLES: &[&str] = &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

const OF_PROGRAM: [&str; 4] = ["wait_here", "moved_inner", "moved_outer", "main"];

/// The functions of the program's stack and how the walk ended, by each of these ways to look.
fn looks(target: &Target) -> Vec<(Vec<String>, bool)> {
    let look = |arguments: &[&str]| {
        let report = report_of(target, arguments);
        let thread = &threads(&report)[0];
        let names = functions(thread).into_iter().map(str::to_owned).skip(1);
        (names.take_while(|name| !name.starts_with("__libc")).collect(), is_complete(thread))
    };
    // In copies, and without a stop.
    vec![look(&[]), look(&["--no-stop"])]
}

fn is_complete(thread: &serde_json::Value) -> bool {
    thread["end"]["complete"].as_bool().unwrap()
}

#[test]
fn k9_code_that_was_moved_to_memory_without_a_file_is_that_of_its_file() {
    let Some(program) = compile("k9_moved", "remapped.c", TABLES) else { return };
    for how in ["mremap", "mmap"] {
        let target = Target::start(&program, &[how]);
        let [copied, asleep] = <[_; 2]>::try_from(looks(&target)).unwrap();
        assert_eq!(copied.0, OF_PROGRAM, "{how}");
        assert!(copied.1, "{how}");
        assert_eq!(asleep.0, OF_PROGRAM, "{how}");
    }
}

#[test]
fn k9_other_code_in_the_place_of_a_files_is_not_taken_for_that() {
    let Some(program) = compile("k9_other", "remapped.c", TABLES) else { return };
    let target = Target::start(&program, &["other"]);
    let [copied, asleep] = <[_; 2]>::try_from(looks(&target)).unwrap();
    // By its own instructions, not by the table of the file. Without a stop these are not copied.
    assert_eq!(copied.0, ["wait_here", "?", "main"]);
    assert!(copied.1 && !asleep.1);
    for (names, _) in [copied, asleep] {
        assert_eq!(names[..2], ["wait_here", "?"]);
        assert!(!names.iter().any(|name| name.starts_with("moved")), "{names:?}");
    }
}

#[test]
fn k9_a_frame_in_such_code_is_explained_by_the_table_of_its_file() {
    let Some(program) = compile("k9_explained", "remapped.c", TABLES) else { return };
    let target = Target::start(&program, &["mremap"]);
    let output = run(["explain", "--pid", &target.id().to_string()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let frame = text.split("\n\n").find(|part| part.contains("moved_inner")).unwrap();
    for part in ["program, 0x", "by call frame information", "FDE of"] {
        assert!(frame.contains(part), "{frame}");
    }
}
