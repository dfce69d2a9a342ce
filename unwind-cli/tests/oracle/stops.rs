//! Stops of a program, with what gdb and `unwind` say of each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

/// One stop.
#[derive(Debug, Deserialize)]
pub struct Stop {
    pub phase: String,
    /// In which step of its phase, or how many stops before it.
    pub number: u64,
    /// The executable mappings: the address of the first byte, and that after the last.
    pub code: Vec<(u64, u64)>,
    pub threads: Vec<GdbThread>,
    /// By method.
    pub unwind: BTreeMap<String, UnwindReport>,
    /// The pcs of the frames of each thread, innermost first, as elfutils finds
    /// them.
    pub eu_stack: BTreeMap<i64, Vec<u64>>,
}

impl Stop {
    /// Whether an address can be that of a frame: in executable memory, or right after it, where
    /// the last call of a function that never returns would return to.
    pub fn is_code(&self, pc: u64) -> bool {
        self.code.iter().any(|(start, end)| (*start..=*end).contains(&pc))
    }

    /// What elfutils finds of a thread; nothing if it does not find the thread.
    pub fn elfutils(&self, thread: i64) -> &[u64] {
        self.eu_stack.get(&thread).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug, Deserialize)]
pub struct GdbThread {
    pub thread: i64,
    /// Innermost first.
    pub frames: Vec<GdbFrame>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GdbFrame {
    pub pc: u64,
    pub sp: u64,
    pub name: Option<String>,
    /// The file with its code, if it is from one.
    pub object: Option<String>,
}

/// The output of `unwind stack --json`, or why there is none.
#[derive(Debug, Deserialize)]
pub struct UnwindReport {
    #[serde(default)]
    pub threads: Vec<UnwindThread>,
    #[serde(default)]
    pub warnings: Vec<String>,
    pub failed: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct UnwindThread {
    pub thread: i64,
    /// Innermost first.
    pub frames: Vec<UnwindFrame>,
    pub end: UnwindEnd,
}

#[derive(Debug, Deserialize)]
pub struct UnwindFrame {
    #[serde(deserialize_with = "hex")]
    pub pc: u64,
    #[serde(deserialize_with = "hex")]
    pub sp: u64,
    pub found_by: String,
    pub function: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct UnwindEnd {
    pub complete: bool,
    pub text: String,
}

fn hex<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    u64::from_str_radix(text.trim_start_matches("0x"), 16).map_err(serde::de::Error::custom)
}

/// Runs a job of `gdb_stops.py`, which describes it.
pub fn run(gdb: &Path, scratch: &Path, mut job: Value) -> Vec<Stop> {
    let (file, out) = (scratch.join("job.json"), scratch.join("stops.jsonl"));
    job["out"] = out.to_str().into();
    job["scratch"] = scratch.to_str().into();
    job["unwind"] = env!("CARGO_BIN_EXE_unwind").into();
    fs::write(&file, job.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/gdb_stops.py");
    let output = Command::new(gdb)
        .args(["-nx", "-q", "-batch", "-x"])
        .arg(script)
        .env("UNWIND_ORACLE_JOB", &file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("Traceback"), "gdb: {stderr}");
    let text = fs::read_to_string(&out).unwrap_or_else(|error| panic!("{error}; gdb: {stderr}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
