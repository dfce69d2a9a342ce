//! `--debuginfod` with servers that do not answer as they should: the user is told once of each,
//! and the output is there without what they have.
#![cfg(test)]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use support::*;
use test_support::{Compiler, tool};

/// A server that deals with each connection in one way. Returns its URL, and how many there were.
fn serve(answer: fn(&mut TcpStream) -> std::io::Result<()>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut stream = stream.unwrap();
            spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = answer(&mut stream);
            });
        }
    });
    (url, count)
}

fn nothing(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn garbage(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\ngarbage")
}

fn silence(_: &mut TcpStream) -> std::io::Result<()> {
    sleep(Duration::from_secs(600));
    Ok(())
}

fn too_much(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    loop {
        stream.write_all(&[b'x'; 1 << 16])?;
    }
}

/// A port on which no one listens: the kernel gives it to no one who does not ask for it.
const REFUSING: &str = "127.0.0.1:1";

/// Two files that are on the stack of a process that waits.
const LIBRARY: &str = "void call(void (*function)(void)) { function(); __asm__(\"\"); }";
const PROGRAM: &str = "#include <unistd.h>
    void call(void (*function)(void));
    static void park(void) { pause(); __asm__(\"\"); }
    int main(void) { write(1, \"ready\\n\", 6); call(park); return 0; }";

/// What the servers are asked for: the files of a process, which has a stack of several.
struct Asker {
    target: Target,
    folder: std::path::PathBuf,
}

impl Asker {
    fn new(test: &str) -> Option<Self> {
        tool("debuginfod-find")?;
        let compiler = Compiler::find(FRAME_POINTERS)?;
        let folder = scratch(test);
        let file = |name: &str| folder.join(name);
        fs::write(file("library.c"), LIBRARY).unwrap();
        fs::write(file("program.c"), PROGRAM).unwrap();
        let (library, program) = (file("library.so"), file("program"));
        let stripped = ["-Wl,--build-id", "-s"];
        let options = [&stripped[..], &["-shared", "-fPIC"]].concat();
        compiler.compile(&file("library.c"), &library, &options);
        let options = [&stripped[..], &["-Wl,--no-as-needed", library.to_str().unwrap()]].concat();
        compiler.compile(&file("program.c"), &program, &options);
        let target = Target::start(&program, &[]);
        Some(Self { target, folder: program.parent().unwrap().to_owned() })
    }

    fn ask(&self, urls: &str) -> Output {
        self.ask_for(urls, "60")
    }

    /// The same of servers that have as many seconds.
    fn ask_for(&self, urls: &str, timeout: &str) -> Output {
        let id = self.target.id().to_string();
        let cache = self.folder.join("cache");
        let _ = fs::remove_dir_all(&cache);
        let mut command = unwind(["stack", "--json", "--debuginfod", "--pid", &id]);
        command.env("DEBUGINFOD_URLS", urls).env("HOME", &self.folder).env_remove("XDG_CACHE_HOME");
        command.env("DEBUGINFOD_CACHE_PATH", cache).env("DEBUGINFOD_TIMEOUT", timeout);
        command.env("DEBUGINFOD_MAXSIZE", "1000000").env_remove("DEBUGINFOD_MAXTIME");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(threads(&report)[0]["frames"].as_array().unwrap().len() > 2, "{report:#}");
        output
    }
}

/// The lines about servers.
fn told(output: &Output) -> Vec<String> {
    let text = stderr(output);
    text.lines().filter(|line| line.contains("http://")).map(str::to_owned).collect()
}

#[test]
fn d14_a_server_that_does_not_answer_is_told_of_once_and_not_asked_again() {
    let Some(asker) = Asker::new("servers_silent") else { return };
    // Each file is asked for where a server has none of them.
    let (none, files) = serve(nothing);
    assert_eq!(told(&asker.ask(&none)), [""; 0]);
    let files = files.load(Ordering::Relaxed);
    assert!(files > 1, "{files}");

    let refusing = format!("http://{REFUSING}");
    let (silent, silent_count) = serve(silence);
    let (wrong, wrong_count) = serve(garbage);
    let (large, large_count) = serve(too_much);
    for (url, why) in [
        (&refusing, "Connection refused"),
        (&silent, "Timer expired"),
        (&wrong, "what it sent for build id "),
        (&large, ""),
    ] {
        // Who is slow on a busy machine is not silent.
        let timeout = if url == &silent { "1" } else { "60" };
        let lines = told(&asker.ask_for(url, timeout));
        let [line] = lines.as_slice() else { panic!("{url}: {lines:?}") };
        let begin = format!("unwind: {url} is not asked again: {why}");
        assert!(line.starts_with(&begin), "{line}");
        assert!(line.contains("go without lines of the source, inlined functions and"), "{line}");
    }
    for (count, most) in [(silent_count, 2), (wrong_count, 1), (large_count, 2)] {
        let count = count.load(Ordering::Relaxed);
        assert!((1..=most).contains(&count), "{count}");
    }
}

#[test]
fn d14_a_server_is_asked_although_another_does_not_answer() {
    let Some(asker) = Asker::new("servers_two") else { return };
    let (none, files) = serve(nothing);
    let lines = told(&asker.ask(&format!("http://name:word@{REFUSING} {none}")));
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.starts_with(&format!("unwind: http://{REFUSING} is not asked again: ")), "{line}");
    assert!(files.load(Ordering::Relaxed) > 1);
}
