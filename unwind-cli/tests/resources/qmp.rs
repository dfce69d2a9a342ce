//! Answers of a QEMU that are long, or many.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::resources::{Bounds, Run, stays_linear};
use crate::support::scratch;

/// An answer is kept while it is read, as a line, as JSON, and as the text in it.
const ANSWERS: Bounds = Bounds { time: Duration::from_secs(20), memory: 16, output: 16 };

const REGISTERS: &str = "RAX=0 RBX=0 RCX=0 RDX=0 RSI=0 RDI=0 RBP=0 RSP=0\n\
     R8 =0 R9 =0 R10=0 R11=0 R12=0 R13=0 R14=0 R15=0\n\
     RIP=0000000000401000 RFL=00000246 [---Z-P-] CPL=3 II=0 A20=1 SMM=0 HLT=0\n\
     CS =0033 0000000000000000 ffffffff 00affb00 DPL=3 CS64 [-RA]\n\
     SS =002b 0000000000000000 ffffffff 00cff300 DPL=3 DS   [-WA]\n\
     CR0=80050033 CR2=0 CR3=0000000000001000 CR4=000006b0\nEFER=0000000000000d01\n";
const MEMORY: &str = "FlatView #0\n Root memory region: system\n  0000-ffff (prio 0, ram): m\n";

/// A QEMU of one client.
#[derive(Clone)]
struct Qemu {
    vcpus: usize,
    registers: String,
    memory: String,
    /// What it says before each answer.
    before: String,
    /// The answer to all else.
    other: Value,
}

impl Qemu {
    fn new() -> Self {
        let (registers, memory) = (REGISTERS.into(), MEMORY.into());
        Self { vcpus: 1, registers, memory, before: String::new(), other: json!({}) }
    }

    fn answer(&self, command: &Value) -> Value {
        let line = command["arguments"]["command-line"].as_str();
        let value = match (command["execute"].as_str().unwrap(), line) {
            ("query-status", _) => json!({ "running": true }),
            ("query-cpus-fast", _) => {
                let vcpus = (0..self.vcpus).map(|vcpu| json!({ "cpu-index": vcpu }));
                vcpus.collect()
            }
            (_, Some("info mtree -f")) => json!(self.memory),
            (_, Some("info registers")) => json!(self.registers),
            _ => self.other.clone(),
        };
        json!({ "return": value })
    }

    fn play(&self, mut stream: UnixStream) -> std::io::Result<()> {
        stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n")?;
        for line in BufReader::new(stream.try_clone()?).lines() {
            let command = serde_json::from_str(&line?)?;
            stream.write_all(self.before.as_bytes())?;
            writeln!(stream, "{}", self.answer(&command))?;
        }
        Ok(())
    }

    /// A look at it. It sends `input` bytes in all.
    fn look(self, directory: &Path, input: usize) -> Run {
        let (socket, memory) = (directory.join("qmp"), directory.join("memory"));
        fs::write(&memory, vec![0; 0x1_0000]).unwrap();
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            // The command closes the connection when it has seen enough.
            let _ = self.play(listener.accept().unwrap().0);
        });
        let [socket, memory] = [&socket, &memory].map(|path| path.to_str().unwrap());
        Run::new(["guest", "--qmp", socket, "--mem", memory], input)
    }
}

#[test]
fn c10_answers_cost_in_proportion_to_their_bytes() {
    type Construction = fn(&mut Qemu, usize) -> usize;
    let constructions: [(&str, Construction); 6] = [
        ("a map of many ranges", |qemu, times| {
            for at in (0..20_000 * times).map(|number| number * 0x1000) {
                writeln!(qemu.memory, "  {at:x}-{:x} (prio 0, ram): m @{at:x}", at + 0xfff)
                    .unwrap();
            }
            qemu.memory.len()
        }),
        ("a map of many names", |qemu, times| {
            for at in (0..20_000 * times).map(|number| number * 0x1000) {
                writeln!(qemu.memory, "  {at:x}-{:x} (prio 0, ram): m{at}", at + 0xfff).unwrap();
            }
            qemu.memory.len()
        }),
        ("registers of many words", |qemu, times| {
            for number in 0..100_000 * times {
                write!(qemu.registers, "X{number}={number:x} ").unwrap();
            }
            qemu.registers.len()
        }),
        ("many events", |qemu, times| {
            qemu.before = "{\"event\": \"RTC_CHANGE\", \"data\": {}}\n".repeat(5_000 * times);
            // Before each of seven answers.
            qemu.before.len() * 7
        }),
        ("deep answers", |qemu, times| {
            let depth = 20_000 * times;
            qemu.before = format!("{{\"event\": {}1{}}}\n", "[".repeat(depth), "]".repeat(depth));
            qemu.before.len() * 7
        }),
        ("many vCPUs", |qemu, times| {
            qemu.vcpus = 200 * times;
            qemu.vcpus * (REGISTERS.len() + 20)
        }),
    ];
    for (name, construct) in constructions {
        let directory = scratch("c10_answers");
        stays_linear("guest", name, ANSWERS, |times| {
            let mut qemu = Qemu::new();
            let input = construct(&mut qemu, times);
            qemu.look(&directory, input)
        });
    }
}
