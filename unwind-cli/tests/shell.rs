//! Completions and manual pages: each subcommand and option is in them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use support::*;
use test_support::skip;

/// The subcommands that the help of some words lists.
fn subcommands(words: &[&str]) -> Vec<String> {
    let output = run(words.iter().chain(&["--help"]));
    let help = String::from_utf8(output.stdout).unwrap();
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let lines = list.lines().take_while(|line| line.starts_with(' ') || line.is_empty());
    let names = lines.filter(is_name).map(|line| line.split_whitespace().next().unwrap());
    names.filter(|&name| name != "help").map(str::to_owned).collect()
}

/// The long options that the help of some words lists.
fn options(words: &[&str]) -> BTreeSet<String> {
    let output = run(words.iter().chain(&["--help"]));
    let help = String::from_utf8(output.stdout).unwrap();
    let start = |line: &str| {
        let line = line.trim_start();
        let long = line.strip_prefix("-").and_then(|rest| rest.split_once(", --"));
        let name = long.map_or_else(|| line.strip_prefix("--"), |(_, name)| Some(name))?;
        let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        Some(format!("--{}", &name[..end.unwrap_or(name.len())]))
    };
    let (_, list) = help.split_once("\nOptions:\n").unwrap();
    let list = list.lines().take_while(|line| line.starts_with(' ') || line.is_empty());
    let options: BTreeSet<_> = list.filter_map(start).collect();
    assert!(options.contains("--help"), "{help}");
    options
}

/// Whether a tool is there; runs it and returns what it prints.
fn tool(name: &str, arguments: &[&OsStr]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip(&format!("no {name}"));
            None
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "{name}: {}", stderr(&output));
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    }
}

#[test]
fn each_subcommand_has_a_manual_page_with_its_options() {
    let directory = scratch("man").join("new");
    let top = subcommands(&[]);
    assert!(top.len() > 7 && top.iter().any(|name| name == "stack"), "{top:?}");
    run([OsStr::new("man"), directory.as_os_str()]);
    let mut commands: Vec<Vec<&str>> = top.iter().map(|name| vec![name.as_str()]).collect();
    let nested = subcommands(&["sframe"]);
    assert!(nested.iter().any(|name| name == "dump"), "{nested:?}");
    commands.extend(nested.iter().map(|name| vec!["sframe", name]));
    for words in commands {
        let path = directory.join(format!("unwind-{}.1", words.join("-")));
        let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let page = page.replace("\\-", "-").replace("\\fR", "");
        for option in options(&words) {
            assert!(page.contains(&option), "{words:?}: {option}: {page}");
        }
    }
    let page = String::from_utf8(run(["man"]).stdout).unwrap();
    assert_eq!(page, fs::read_to_string(directory.join("unwind.1")).unwrap());
}

#[test]
fn a_manual_page_can_be_read_as_it_was_meant() {
    let directory = scratch("man_read");
    run([OsStr::new("man"), directory.as_os_str()]);
    let stack = directory.join("unwind-stack.1");
    let render = ["-P", "cat", "--warnings=w", "-l"].map(OsStr::new);
    let Some(text) = tool("man", &[&render[..], &[stack.as_os_str()]].concat()) else { return };
    for line in [
        "unwind-stack - Print the stacks of a process, a core file or a command",
        "unwind stack [OPTIONS] --pid <PID>",
        // A list keeps its lines.
        "  registers  it is what the thread executes",
        "    frames  innermost first, each with",
        "  signal     by the registers that the kernel saved for a signal handler",
    ] {
        assert!(text.lines().any(|shown| shown.contains(line)), "{line}: {text}");
    }
}

#[test]
fn a_directory_for_manual_pages_that_cannot_be_made_is_named() {
    let file = scratch("man_refused").join("file");
    fs::write(&file, "").unwrap();
    let error = fails([OsStr::new("man"), file.join("inside").as_os_str()], 1);
    assert!(error.contains("file/inside"), "{error}");
}

#[test]
fn completions_have_each_subcommand_and_option() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(run(["completions", shell]).stdout).unwrap();
        for name in subcommands(&[]).iter().chain(&subcommands(&["sframe"])) {
            assert!(script.contains(name.as_str()), "{shell}: {name}");
        }
        for words in [&["stack"][..], &["record"], &["sframe", "build"]] {
            for option in options(words) {
                // Fish has the name alone.
                let name = if shell == "fish" { &option[2..] } else { &option };
                assert!(script.contains(name), "{shell}: {words:?}: {option}");
            }
        }
    }
}

/// What bash offers for the last of some words, when its script is loaded.
fn bash_offers(script: &Path, words: &[&str]) -> Option<BTreeSet<String>> {
    let list: String = words.iter().map(|word| format!(" '{word}'")).collect();
    let last = words.len() - 1;
    let ask = format!(
        "source '{}'; COMP_WORDS=({list}); COMP_CWORD={last}; \
         _unwind unwind '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words[last],
        words[last - 1],
    );
    let text = tool("bash", &["--norc", "-c", &ask].map(OsStr::new))?;
    Some(text.lines().map(|line| line.trim().to_owned()).collect())
}

#[test]
fn bash_completes_subcommands_options_and_values() {
    let script = scratch("bash").join("unwind.bash");
    fs::write(&script, run(["completions", "bash"]).stdout).unwrap();
    if tool("bash", &[OsStr::new("-n"), script.as_os_str()]).is_none() {
        return;
    }
    let offers = |words: &[&str]| bash_offers(&script, words).unwrap();
    assert!(offers(&["unwind", "sta"]).contains("stack"));
    assert!(!offers(&["unwind", "sta"]).contains("report"));
    assert!(offers(&["unwind", "stack", "--max"]).contains("--max-frames"));
    assert!(offers(&["unwind", "stack", "--method", ""]).contains("cfi-sframe"));
}

#[test]
fn colours_say_what_the_words_say_and_are_left_out_where_nobody_wants_them() {
    let stack = |variables: &[(&str, &str)]| {
        let mut command = support::unwind(["stack", "--kill", "--no-lines", "--", "sleep", "20"]);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("TERM", "xterm");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", support::stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let coloured = stack(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.contains("\x1b[32mregisters"), "{coloured}");
    assert!(coloured.contains("\x1b[32mcomplete\x1b[0m: "), "{coloured}");
    // A pipe gets none, and neither does who has said so.
    for variables in [&[][..], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]] {
        let plain = stack(variables);
        assert!(!plain.contains('\x1b') && plain.contains("  registers  "), "{plain}");
    }
}
