//! The commands in README.md and docs/: each is run, or it is said here why not.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::spawn;

use support::*;
use test_support::{Compiler, skip, tool};

/// What is not run here, by its beginning, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo install", "it installs for good; what it builds is what these tests run"),
    ("cargo doc --open", "it opens a browser: .ci/run makes the same documentation"),
    ("cargo run", "the demonstration: a step of .ci/run"),
    ("cargo test", "these tests are a part of it"),
    ("UNWIND_PROGRAMS=", "the tests of these names, with programs that the reader has"),
    ("unwind-local/c/install", "unwind-local/c/check runs it"),
    ("cc program.c", "unwind-local/c/check compiles programs with what is installed"),
    ("man unwind_local", "a page of text"),
    ("LD_LIBRARY_PATH=", "a program that the reader has, with what is installed"),
    ("LD_PRELOAD=", "a program that the reader has, with what is installed"),
    ("unwind guest", "it needs QEMU: hosts/kernel-demo/run runs it"),
    ("unwind record --guest", "it needs QEMU: the test linux_guest runs it"),
    ("hosts/linux-module/package", "hosts/linux-module/tests/run runs it"),
    ("apt-get install dkms", "it installs for good, and so do the next two"),
    ("dkms install", "a kernel module"),
    ("modprobe unwind", "a kernel module"),
    ("gcc -O2 -o unwind-record", "hosts/linux-module/tests/run compiles it"),
    ("unwind record --engine module", "it needs the module: hosts/linux-module/tests/run runs it"),
    ("./unwind-record", "it needs the module: hosts/linux-module/tests/run runs it"),
];

/// What stands for words of the documentation that mean something of the reader's. The first that
/// fits is taken first.
const STANDS_FOR: &[(&str, &str)] = &[
    (" sframe dump|find|check|stat|diff FILE… ", " sframe dump program "),
    (" sframe build FILE ", " sframe build plain "),
    (" /usr/bin/node ", " plain "),
    (" 0x1040 ", " main+0x1 "),
    (" --core FILE ", " --core core "),
    (" FILE@N ", " perf.data@100 "),
    (" FILE ", " perf.data "),
    (" BEFORE AFTER ", " before.data after.data "),
    (" -o DIR ", " -o tables "),
    (" -o OUT ", " -o out "),
    (" man DIR ", " man manual "),
    (" SHELL ", " bash "),
    (" CMD ARGS… ", " ./server --port 80 "),
    (" --off-cpu … ", " --off-cpu -- ./server "),
    (" --otlp URL … ", " --otlp {url} -- ./server "),
    (" http://localhost:4318 ", " {url} "),
    // Without a terminal it does not end before the process does.
    (" top --pid ", " top --batch 1 --interval 1 --pid "),
    (" --batch 3 ", " --batch 3 --interval 1 "),
    (" --pid 1234 ", " --pid {pid} "),
    (" --pid PID ", " --pid {pid} "),
    (" --duration 10 ", " --duration 1 "),
    (" --every 60 ", " --every 1 --duration 2 "),
    (" /var/log/unwind/perf.data ", " log/perf.data "),
];

/// Commands that follow each other, each a line.
struct Block {
    file: PathBuf,
    commands: Vec<String>,
}

/// The blocks of shell commands of a page, and the commands in the first column of its tables.
fn blocks(file: &Path) -> Vec<Block> {
    let text = fs::read_to_string(file).unwrap().replace("\\\n", "");
    let mut blocks = Vec::new();
    let block = |commands| Block { file: file.to_owned(), commands };
    let mut fence: Option<Vec<String>> = None;
    let mut is_shell = false;
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            match fence.take() {
                Some(commands) if is_shell => blocks.push(block(commands)),
                Some(_) => {}
                None => {
                    is_shell = language == "sh";
                    fence = Some(Vec::new());
                }
            }
        } else if let Some(commands) = &mut fence {
            let command = line.split(" #").next().unwrap_or_default().trim();
            if !command.is_empty() && !command.starts_with('#') {
                commands.push(command.to_owned());
            }
        } else if line.starts_with("| `unwind ") {
            let (cell, _) = line[2..].split_once(" | ").unwrap();
            let commands = cell.split('`').filter(|span| span.starts_with("unwind "));
            blocks.extend(commands.map(|command| block(vec![command.replace("\\|", "|")])));
        }
    }
    assert!(fence.is_none(), "{} has no end of a block", file.display());
    blocks
}

/// The pages for users.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("README.md"), root.join("unwind-cli/README.md")];
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    files[2..].sort();
    files
}

/// The page whose commands are run one after another, as a reader does.
const TUTORIAL: &str = "tutorial.md";

fn documentation() -> Vec<Block> {
    let pages = pages().into_iter().filter(|file| !file.ends_with(TUTORIAL));
    pages.flat_map(|file| blocks(&file)).collect()
}

/// A receiver of profiles that takes all; its URL.
fn receiver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut len = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    len = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            std::io::copy(&mut stream.by_ref().take(len), &mut std::io::sink()).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    url
}

/// Makes all files that commands name. `None` where something for it is missing.
fn prepare(folder: &Path) -> Option<()> {
    let (with_table, without) = (Compiler::find(SFRAME)?, Compiler::find(FRAME_POINTERS)?);
    let source =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let compile = |name: &str, program: &str, more: &[&str]| {
        with_table.compile(&source(name), &folder.join(program), more);
    };
    compile("nested.c", "busy", &[]);
    compile("echo.c", "program", &[]);
    without.compile(&source("echo.c"), &folder.join("plain"), &[]);
    for object in ["y.o", "old.o", "new.o"] {
        compile("nested.c", object, &["-c"]);
    }
    compile("nested.c", "z.so", &["-shared", "-fPIC"]);
    let ar = Command::new(tool("ar")?).args(["rc", "libx.a", "y.o"]).current_dir(folder).status();
    assert!(ar.unwrap().success());
    let server = folder.join("server");
    fs::write(&server, "#!/bin/sh\nexec ./busy 0.4\n").unwrap();
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    let gdb = Command::new(tool("gdb")?)
        .args(["-nx", "-batch", "-ex", "starti", "-ex", "generate-core-file core", "./program"])
        .current_dir(folder)
        .output();
    assert!(folder.join("core").exists(), "{}", stderr(&gdb.unwrap()));
    fs::create_dir(folder.join("log")).unwrap();
    let args = ["record", "--keep-stacks", "-o", "kept", "--", "./server"];
    let output = unwind(args).current_dir(folder).output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["before.data", "after.data"] {
        fs::copy(folder.join("kept"), folder.join(name)).unwrap();
    }
    Some(())
}

#[test]
fn each_command_of_the_documentation_runs() {
    let folder = scratch("documentation");
    let Some(()) = prepare(&folder) else { return };
    let target = Target::start(&folder.join("program"), &[]);
    let (pid, url) = (target.id().to_string(), receiver());
    let mut is_used = vec![false; NOT_RUN.len() + STANDS_FOR.len()];
    let mut count = 0;
    for block in documentation() {
        fs::copy(folder.join("kept"), folder.join("perf.data")).unwrap();
        for documented in &block.commands {
            let at = format!("{}: {documented}", block.file.display());
            if let Some(row) = NOT_RUN.iter().position(|(start, _)| documented.starts_with(start)) {
                is_used[row] = true;
                continue;
            }
            let mut command = format!(" {documented} ");
            for (row, (word, stands_for)) in STANDS_FOR.iter().enumerate() {
                is_used[NOT_RUN.len() + row] |= command.contains(word);
                command = command.replace(word, stands_for);
            }
            let command = command.replace("{pid}", &pid).replace("{url}", &url);
            let words: Vec<&str> = command.split_whitespace().collect();
            assert_eq!(words[0], "unwind", "{at}: neither run nor listed");
            let mut run = unwind(&words[1..]);
            let output = run.current_dir(&folder).stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{at}, as {command}: {}", stderr(&output));
            let written = words.windows(2).find(|pair| ["-o", "man"].contains(&pair[0]));
            let written = written.map(|pair| pair[1]);
            let is_told = !output.stdout.is_empty() || words[1] == "record";
            assert!(written.map_or(is_told, |path| exists(&folder, path)), "{at}: no output");
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
    let words = NOT_RUN.iter().chain(STANDS_FOR).map(|(word, _)| word);
    let unused: Vec<_> = words.zip(is_used).filter(|(_, is_used)| !is_used).collect();
    assert!(unused.is_empty(), "in no page: {unused:?}");
}

#[test]
fn the_tutorial_can_be_followed() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let program = fs::read_to_string(docs.join("tutorial/words.c")).unwrap();
    let page = docs.join(TUTORIAL);
    assert!(fs::read_to_string(&page).unwrap().contains(&format!("```c\n{program}```")));
    let blocks = blocks(&page);
    let is_run = |command: &&String| !NOT_RUN.iter().any(|(start, _)| command.starts_with(start));
    let commands: Vec<_> = blocks.iter().flat_map(|block| &block.commands).filter(is_run).collect();
    assert!(commands.iter().filter(|command| command.starts_with("unwind ")).count() > 8);
    let (Some(shell), Some(_), Some(_)) = (tool("bash"), tool("cc"), tool("awk")) else { return };
    let folder = scratch("tutorial");
    fs::write(folder.join("words.c"), program).unwrap();
    let mut path = Path::new(env!("CARGO_BIN_EXE_unwind")).parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let script: String = commands.into_iter().flat_map(|command| [command, "\n"]).collect();
    let mut run = Command::new(shell);
    run.args(["-e", "-c", &script]).env("PATH", path).current_dir(&folder).stdin(Stdio::null());
    let output = run.output().unwrap();
    if stderr(&output).contains("lets no sampling event be opened") {
        skip(&stderr(&output));
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told.matches("functions above the bound").count(), 2, "{told}");
    for written in ["before.svg", "before.html", "diff.html"] {
        assert!(folder.join(written).exists(), "{written}");
    }
}

/// Whether there is a file, or one with a time at the end of its name.
fn exists(folder: &Path, path: &str) -> bool {
    let path = folder.join(path);
    let name = path.file_name().unwrap().to_str().unwrap();
    let entries = fs::read_dir(path.parent().unwrap()).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).any(|other| {
        let other = other.to_str().unwrap();
        other == name || other.starts_with(&format!("{name}."))
    })
}

/// The code in the sentences of a page, without its blocks.
fn spans(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let outside = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
    let spans = outside.split('`').skip(1).step_by(2);
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The options of a command with its subcommand, as its help has them; `None` if there is none.
fn options(command: &[&str]) -> Option<BTreeSet<String>> {
    let output = unwind(command.iter().chain(&["--help"])).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split(|letter: char| letter.is_whitespace() || ",[]=".contains(letter));
    let options = words.filter(|word| word.starts_with('-') && word.len() > 1);
    output.status.success().then(|| options.map(str::to_owned).collect())
}

#[test]
fn d14_each_option_in_the_sentences_of_the_documentation_is_one() {
    let commands = [
        "stack",
        "explain",
        "guest",
        "sframe",
        "record",
        "top",
        "report",
        "script",
        "verify",
        "merge",
        "completions",
        "man",
        "demo",
    ];
    let known: BTreeMap<_, _> =
        commands.into_iter().filter_map(|name| Some((name, options(&[name])?))).collect();
    let of_sframe = ["build", "check", "diff", "dump", "find", "stat"];
    let of_sframe = of_sframe.into_iter().filter_map(|name| options(&["sframe", name]));
    let all: BTreeSet<String> = known.values().cloned().chain(of_sframe).flatten().collect();
    let (mut spans_seen, mut wrong) = (0, Vec::new());
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap();
        for span in spans(&page) {
            let words: Vec<&str> = span.split(' ').collect();
            let named = match words.as_slice() {
                ["unwind", "sframe", command, ..] if !command.starts_with('-') => {
                    options(&["sframe", command.split('\\').next().unwrap()])
                }
                ["unwind", command, ..] => match known.get(command) {
                    Some(options) => Some(options.clone()),
                    None if ["help", "--version", "--help"].contains(command) => continue,
                    None => None,
                },
                [option]
                    if ["README.md", TUTORIAL, "record.md", "report.md", "fleet.md"]
                        .contains(&name)
                        && option.starts_with("--")
                        && option.len() > 2 =>
                {
                    Some(all.clone())
                }
                _ => continue,
            };
            spans_seen += 1;
            let own = words.iter().take_while(|word| **word != "--");
            let used = own.filter(|word| word.starts_with("--") && word.len() > 2);
            let used = used.map(|word| word.split(['=', '`', ',']).next().unwrap());
            let Some(named) = named else {
                wrong.push(format!("{name}: {span}: no such command"));
                continue;
            };
            let unknown = used.filter(|word| !named.contains(*word) && *word != "--help");
            wrong.extend(unknown.map(|option| format!("{name}: {span}: {option}")));
        }
    }
    assert!(spans_seen > 60, "{spans_seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
