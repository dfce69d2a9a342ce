//! Samples of `perf record --call-graph dwarf`, and perf's own stacks of them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

use unwind_snapshot::Snapshot;

use crate::Unwinder;
use crate::corpus::{Corpus, Module, Tables, eh_frame_of};
use crate::own_maps::{own_bytes, own_maps};
use crate::perf_samples::{Mapping, Segment, Space, bias, read, segments};

/// The samples of one process, in parts with the same code mapped, and what perf
/// makes of them.
#[derive(Debug)]
pub struct PerfFile {
    /// In order of time.
    pub parts: Vec<Corpus>,
    /// The stacks that `perf script` prints.
    pub chains: PerfScript,
}

impl PerfFile {
    /// Reads the first `count` samples with registers and stack of the process
    /// that has most of them. The files that it ran have to be there unchanged.
    ///
    /// # Panics
    ///
    /// If the file cannot be read, or perf not be run.
    #[must_use]
    pub fn open(path: &Path, count: usize) -> Self {
        let mut samples = read(BufReader::new(File::open(path).unwrap()));
        let mut by_process: HashMap<u32, usize> = HashMap::new();
        for (snapshot, _) in &samples {
            *by_process.entry(snapshot.process).or_default() += 1;
        }
        let most = by_process.into_iter().max_by_key(|&(process, count)| (count, process));
        let (process, _) = most.expect("samples with registers and stack");
        samples.retain(|(snapshot, _)| snapshot.process == process);
        samples.truncate(count);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut files = Files::default();
        let mut parts: Vec<(Space, Corpus)> = Vec::new();
        for (snapshot, space) in samples {
            match parts.last_mut() {
                Some((same, corpus)) if *same == space => corpus.snapshots.push(snapshot),
                _ => {
                    let modules = space.iter().map(|mapping| files.module(mapping)).collect();
                    let (name, snapshots) = (name.clone(), vec![snapshot]);
                    parts.push((space, Corpus { name, snapshots, modules }));
                }
            }
        }
        let chains = PerfScript::run(path, &parts);
        Self { parts: parts.into_iter().map(|(_, corpus)| corpus).collect(), chains }
    }
}

/// The files that are mapped, by path.
#[derive(Default)]
struct Files(HashMap<String, (&'static Tables, Vec<Segment>)>);

impl Files {
    fn module(&mut self, mapping: &Mapping) -> Module {
        let path = &mapping.path;
        let (tables, segments) = self.0.entry(path.clone()).or_insert_with(|| {
            let nothing = Tables { path: path.clone(), ..Tables::default() };
            let Some(bytes) = bytes_of(path) else { return (Box::leak(Box::new(nothing)), vec![]) };
            let file = object::File::parse(&*bytes).unwrap();
            let cfi = eh_frame_of(&file);
            let tables = cfi.map_or(nothing, |(addr, cfi)| Tables::new(path, addr, &cfi));
            (Box::leak(Box::new(tables)), segments(&file))
        });
        // What is mapped of the vDSO starts at its first byte.
        let offset = if path == "[vdso]" { 0 } else { mapping.offset };
        let bias = bias(segments, mapping.range.start, offset);
        let bias = bias.unwrap_or(mapping.range.start);
        Module { text: mapping.range.clone(), bias, tables }
    }
}

/// The bytes of a file with code. The vDSO is that of every process.
fn bytes_of(path: &str) -> Option<Vec<u8>> {
    if path == "[vdso]" {
        let map = own_maps().into_iter().find(|map| map.path == Path::new(path))?;
        return own_bytes(&map);
    }
    let bytes = fs::read(path).ok()?;
    bytes.starts_with(b"\x7fELF").then_some(bytes)
}

/// The stacks that `perf script` prints.
#[derive(Debug)]
pub struct PerfScript {
    /// By thread and time.
    chains: HashMap<(u32, u64), Vec<u64>>,
    frames: Vec<u64>,
}

impl PerfScript {
    fn run(path: &Path, parts: &[(Space, Corpus)]) -> Self {
        let output = Command::new("perf")
            .args(["script", "--no-inline", "--ns", "--max-stack", "512"])
            .args(["-F", "tid,time,ip,dso", "-i"])
            .arg(path)
            .output()
            .expect("perf is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut chains = HashMap::new();
        for block in text.split("\n\n") {
            let mut lines = block.lines().filter(|line| !line.trim().is_empty());
            let Some((thread, time)) = lines.next().and_then(heading) else { continue };
            let space = parts.iter().find_map(|(space, corpus)| {
                let is_it = |s: &Snapshot<'_>| (s.thread, s.time) == (thread, time);
                corpus.snapshots.iter().any(is_it).then_some(space)
            });
            let Some(space) = space else { continue };
            let user = lines.filter_map(frame).filter(|(ip, _)| *ip < 1 << 63);
            let lookups = user.map(|(ip, dso)| address(space, ip, dso));
            // perf prints of a call the last byte.
            let pcs = lookups.enumerate().map(|(at, ip)| ip + u64::from(at > 0));
            chains.insert((thread, time), pcs.collect());
        }
        Self { chains, frames: Vec::new() }
    }
}

/// The thread and time of a sample.
fn heading(line: &str) -> Option<(u32, u64)> {
    let mut fields = line.split_whitespace();
    let thread = fields.next()?.parse().ok()?;
    let (seconds, nanoseconds) = fields.next()?.strip_suffix(':')?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    Some((thread, seconds * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?))
}

/// What perf prints of a frame: where in the file, and which file.
fn frame(line: &str) -> Option<(u64, &str)> {
    let (ip, dso) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let dso = dso.trim().strip_prefix('(').and_then(|dso| dso.strip_suffix(')'));
    Some((u64::from_str_radix(ip, 16).ok()?, dso.unwrap_or_default()))
}

/// The address of what is at an offset of a file.
fn address(space: &Space, ip: u64, dso: &str) -> u64 {
    let mapped = space.iter().find(|mapping| {
        let len = mapping.range.end - mapping.range.start;
        mapping.path == dso && ip.wrapping_sub(mapping.offset) < len
    });
    mapped.map_or(ip, |mapping| mapping.range.start + (ip - mapping.offset))
}

impl Unwinder for &mut PerfScript {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let chain = self.chains.get(&(snapshot.thread, snapshot.time));
        self.frames = chain.cloned().unwrap_or_default();
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }
}
