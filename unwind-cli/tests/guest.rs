//! `unwind guest` before a machine that the test plays: its monitor and its
//! memory, with page tables of each shape.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "guest/dump.rs"]
mod dump;
#[path = "support/schema.rs"]
mod schema;
mod support;
#[path = "guest/sysroot.rs"]
mod sysroot;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use testdata::{ElfBuilder, ElfSection, ElfSegment};

use support::*;

/// How many bytes of memory the machine has.
const RAM: usize = 0x2_0000;
/// Where the root table is; the others follow.
const ROOT: u64 = 0x1000;
/// The page of the stack: physical, and linear in 64-bit and in 32-bit code.
const STACK: u64 = 0x1_0000;
const STACK_64: u64 = 0x7fff_ff00_0000;
const STACK_32: u64 = 0xff00_0000;

/// What the test plays.
struct Machine {
    ram: Vec<u8>,
    registers: String,
    running: bool,
    /// After how many commands it closes the connection.
    closes_after: usize,
}

impl Machine {
    /// 64-bit user code, whose chain of frame pointers has two callers.
    fn long(levels: u32) -> Self {
        let la57 = if levels == 5 { 1 << 12 } else { 0 };
        let rsp = STACK_64 + 0x100;
        let registers = format!(
            "{}RBP={:016x} RSP={rsp:016x}\n{}RIP=0000000000401000 RFL=00000246 [---Z-P-] CPL=3 \
             II=0 A20=1 SMM=0 HLT=0\nCS =0033 0000000000000000 ffffffff 00affb00 DPL=3 CS64 [-RA]\n\
             SS =002b 0000000000000000 ffffffff 00cff300 DPL=3 DS   [-WA]\n\
             CR0=80050033 CR2=0 CR3={ROOT:016x} CR4={:08x}\nEFER=0000000000000d01\n",
            "RAX=0 RBX=0 RCX=0 RDX=0 RSI=0 RDI=0 ",
            rsp + 0x10,
            "R8 =0 R9 =0 R10=0 R11=0 R12=0 R13=0 R14=0 R15=0\n",
            0x6b0 | la57,
        );
        let mut machine = Self::new(registers);
        let shifts: &[u32] = if levels == 5 { &[48, 39, 30, 21, 12] } else { &[39, 30, 21, 12] };
        machine.map_8(shifts, STACK_64);
        machine.chain(STACK + 0x110, STACK_64 - STACK, 8);
        machine
    }

    /// 32-bit user code with 2-level paging, or under a 64-bit kernel.
    fn narrow(is_compat: bool) -> Self {
        let (cr4, efer) = if is_compat { (0x6b0, 0xd01) } else { (0x690, 0) };
        let esp = STACK_32 + 0x100;
        let registers = format!(
            "EAX=0 EBX=0 ECX=0 EDX=0\nESI=0 EDI=0 EBP={:08x} ESP={esp:08x}\n\
             EIP=08049000 EFL=00000246 [---Z-P-] CPL=3 II=0 A20=1 SMM=0 HLT=0\n\
             CS =0023 00000000 ffffffff 00cffb00 DPL=3 CS32 [-RA]\n\
             SS =002b 00000000 ffffffff 00cff300 DPL=3 DS   [-WA]\n\
             CR0=80050033 CR2=0 CR3={ROOT:08x} CR4={cr4:08x}\nEFER={efer:016x}\n",
            esp + 0x10,
        );
        let mut machine = Self::new(registers);
        if is_compat {
            machine.map_8(&[39, 30, 21, 12], STACK_32);
        } else {
            machine.write_4(ROOT + 4 * (STACK_32 >> 22), 0x2000 | 7);
            machine.write_4(0x2000 + 4 * (STACK_32 >> 12 & 0x3ff), STACK | 7);
        }
        machine.chain(STACK + 0x110, STACK_32 - STACK, 4);
        machine
    }

    fn new(registers: String) -> Self {
        Self { ram: vec![0; RAM], registers, running: true, closes_after: usize::MAX }
    }

    /// Maps one page through tables of 8-byte entries.
    fn map_8(&mut self, shifts: &[u32], addr: u64) {
        for (level, shift) in (0..).zip(shifts) {
            let next = if *shift == 12 { STACK } else { ROOT + (level + 1) * 0x1000 };
            let at = ROOT + level * 0x1000 + 8 * (addr >> shift & 0x1ff);
            self.write_8(at, next | 7);
        }
    }

    /// Two frames of a chain of frame pointers at a physical address.
    fn chain(&mut self, at: u64, to_linear: u64, word: u64) {
        let mut put =
            |at, value| if word == 8 { self.write_8(at, value) } else { self.write_4(at, value) };
        put(at, at + 0x20 + to_linear);
        put(at + word, 0x40_1111);
        put(at + 0x20, 0);
        put(at + 0x20 + word, 0x40_2222);
    }

    fn write_8(&mut self, at: u64, value: u64) {
        let at = usize::try_from(at).unwrap();
        self.ram[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn write_4(&mut self, at: u64, value: u64) {
        let at = usize::try_from(at).unwrap();
        self.ram[at..at + 4].copy_from_slice(&u32::try_from(value).unwrap().to_le_bytes());
    }

    /// Starts to play, for one client.
    fn start(self, test: &str) -> Played {
        let directory = scratch(&format!("guest-{test}"));
        let (socket, memory) = (directory.join("qmp"), directory.join("memory"));
        fs::write(&memory, &self.ram).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let commands = thread::spawn(move || self.play(listener.accept().unwrap().0));
        Played { socket, memory, commands }
    }

    /// Answers until the client goes; returns the commands that came.
    fn play(mut self, mut stream: UnixStream) -> Vec<String> {
        let mut came = Vec::new();
        stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let Ok(line) = line else { break };
            let command: Value = serde_json::from_str(&line).unwrap();
            let name = command["execute"].as_str().unwrap().to_owned();
            let answer = self.answer(&name, &command["arguments"]);
            came.push(name);
            if came.len() > self.closes_after || writeln!(stream, "{answer}").is_err() {
                break;
            }
        }
        came
    }

    fn answer(&mut self, command: &str, arguments: &Value) -> Value {
        let value = match (command, arguments["command-line"].as_str()) {
            ("query-status", _) => json!({ "running": self.running }),
            ("query-cpus-fast", _) => json!([{ "cpu-index": 0 }]),
            ("stop", _) => {
                self.running = false;
                json!({})
            }
            ("cont", _) => {
                self.running = true;
                json!({})
            }
            (_, Some("info mtree -f")) => json!(format!(
                "FlatView #0\n Root memory region: system\n  {:016x}-{:016x} (prio 0, ram): m\n",
                0,
                RAM - 1
            )),
            (_, Some("info registers")) => json!(self.registers),
            _ => json!({}),
        };
        json!({ "return": value })
    }
}

/// A machine that is played.
struct Played {
    socket: PathBuf,
    memory: PathBuf,
    commands: JoinHandle<Vec<String>>,
}

impl Played {
    fn arguments(&self) -> Vec<String> {
        let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
        vec!["guest".into(), "--qmp".into(), text(&self.socket), "--mem".into(), text(&self.memory)]
    }

    /// Runs the command with these arguments more; returns what it printed.
    fn run(&self, more: &[&str]) -> String {
        let arguments = self.arguments();
        let output = run(arguments.iter().map(String::as_str).chain(more.iter().copied()));
        String::from_utf8(output.stdout).unwrap()
    }

    fn commands(self) -> Vec<String> {
        self.commands.join().unwrap()
    }
}

fn vcpu(json: &str) -> Value {
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["schema"], 1);
    schema::Schema::of("guest").check(&report, &[]);
    report["vcpus"][0].clone()
}

fn pcs(vcpu: &Value) -> Vec<&str> {
    vcpu["frames"].as_array().unwrap().iter().map(|frame| frame["pc"].as_str().unwrap()).collect()
}

#[test]
fn a_stack_is_read_through_tables_of_each_shape() {
    for (name, machine, arch, paging, pc) in [
        ("four", Machine::long(4), "x86-64", "4-level", "0x401000"),
        ("five", Machine::long(5), "x86-64", "5-level", "0x401000"),
        ("compat", Machine::narrow(true), "ia32", "4-level", "0x8049000"),
        ("two", Machine::narrow(false), "ia32", "2-level", "0x8049000"),
    ] {
        let played = machine.start(name);
        let vcpu = vcpu(&played.run(&["--json"]));
        assert_eq!(vcpu["arch"], arch, "{name}");
        assert_eq!(vcpu["paging"], paging, "{name}");
        assert_eq!(vcpu["privilege"], "user", "{name}");
        assert_eq!(pcs(&vcpu), [pc, "0x401111", "0x402222"], "{name}: {vcpu:#}");
        played.commands();
    }
}

#[test]
fn a_guest_that_runs_is_stopped_for_the_time_of_the_look() {
    let played = Machine::long(4).start("stops");
    let text = played.run(&[]);
    assert!(text.starts_with("vCPU 0, user x86-64, paging 4-level\n"), "{text}");
    let commands = played.commands();
    // The kernel is looked for before that.
    let of_interest: Vec<_> = commands[4..].iter().map(String::as_str).collect();
    assert_eq!(of_interest, ["query-status", "stop", "human-monitor-command", "cont"]);
}

#[test]
fn a_guest_that_is_paused_stays_so_and_a_live_one_is_not_stopped() {
    let paused = Machine { running: false, ..Machine::long(4) }.start("paused");
    paused.run(&[]);
    let live = Machine::long(4).start("live");
    live.run(&["--live"]);
    for played in [paused, live] {
        let commands = played.commands();
        assert!(!commands.iter().any(|name| name == "stop" || name == "cont"), "{commands:?}");
    }
}

#[test]
fn a_guest_continues_after_an_error() {
    let registers = Machine::long(4).registers.replace("RBP", "RXP");
    let played = Machine { registers, ..Machine::long(4) }.start("error");
    let text = fails(played.arguments(), 5);
    assert!(text.contains("vCPU 0: the monitor shows no register RBP"), "{text}");
    assert_eq!(played.commands().last().unwrap(), "cont");
}

#[test]
fn a_page_that_is_absent_ends_the_stack_and_is_named() {
    let mut machine = Machine::long(4);
    // The last table has no entry any more.
    machine.write_8(0x4000 + 8 * (STACK_64 >> 12 & 0x1ff), 0);
    let played = machine.start("absent");
    let vcpu = vcpu(&played.run(&["--json"]));
    assert_eq!(pcs(&vcpu), ["0x401000"]);
    assert_eq!(vcpu["end"]["complete"], false);
    let text = vcpu["end"]["text"].as_str().unwrap();
    let reason = "at 0x7fffff000118: page table entry at 0x4000 is not present";
    assert!(text.ends_with(reason), "{text}");
    played.commands();
}

#[test]
fn d10_an_incomplete_stack_is_a_failure_where_the_user_wants_it() {
    let played = Machine::long(4).start("incomplete");
    let arguments = [played.arguments(), vec!["--fail-incomplete".into()]].concat();
    let output = unwind(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    assert_eq!(stderr(&output), "unwind: 1 of 1 stack is incomplete\n");
    assert!(String::from_utf8(output.stdout).unwrap().contains("0x0000000000402222"));
    played.commands();
}

#[test]
fn samples_are_folded_and_counted() {
    let played = Machine::long(4).start("folded");
    let text = played.run(&["--sample", "5", "--hz", "1000"]);
    assert_eq!(text, "[user];[incomplete];0x402222;0x401111;0x401000 5\n");
    let commands = played.commands();
    assert_eq!(commands.iter().filter(|name| *name == "stop").count(), 5);
    assert_eq!(commands.iter().filter(|name| *name == "cont").count(), 5);
}

#[test]
fn the_rows_of_all_samples_are_counted_where_the_user_wants_it() {
    let played = Machine::long(4).start("stats");
    let arguments = [played.arguments(), ["--sample", "5", "--stats"].map(String::from).to_vec()];
    let output = run(arguments.concat());
    // The code is in no file: each frame is asked for, and no row is found.
    let line = stderr(&output);
    let looked_up: u64 = line.split(' ').next().unwrap().parse().unwrap();
    assert!(line.contains(" looked up, ") && looked_up.is_multiple_of(5), "{line}");
    assert!(looked_up > 0, "{line}");
    played.commands();
}

#[test]
fn samples_of_a_guest_that_ends_are_kept() {
    // Four commands of preparation, four a sample.
    let played = Machine { closes_after: 3 + 4 * 2 + 1, ..Machine::long(4) }.start("ends");
    let arguments = [played.arguments(), ["--sample", "9"].map(String::from).to_vec()].concat();
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "[user];[incomplete];0x402222;0x401111;0x401000 2\n");
    assert!(stderr(&output).contains("ended after 2 samples"), "{}", stderr(&output));
    played.commands();
}

#[test]
fn what_cannot_be_used_is_named() {
    let text = fails(["guest", "--qmp", "/nonexistent/qmp", "--mem", "/dev/null"], 3);
    assert!(text.contains("/nonexistent/qmp"), "{text}");

    let played = Machine::long(4).start("short");
    fs::write(&played.memory, [0; 0x1000]).unwrap();
    let text = fails(played.arguments(), 5);
    assert!(text.contains("has 0x1000 bytes, but the guest's memory goes to 0x20000"), "{text}");
    played.commands();

    let arguments = ["guest", "--qmp", "q", "--mem", "m", "--symbols", "/nonexistent/vmlinux"];
    let text = fails(arguments, 3);
    assert!(text.contains("/nonexistent/vmlinux"), "{text}");
    let text = fails(["guest", "--qmp", "q", "--mem", "m", "--symbols", "/dev/null"], 5);
    assert!(text.contains("not an ELF file"), "{text}");
}

/// Where the kernel of a test is linked for, and how far the guest has moved it.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const MOVED_BY: u64 = 6 << 20;
const KERNEL_STACK: u64 = 0xffff_c900_0000_0000;

/// A kernel's file: its ORC table says that a function has its caller 24 bytes above the stack pointer, and that code
/// half a page after it has saved all registers.
fn kernel() -> Vec<u8> {
    let mut kernel = ElfBuilder::new(ElfBuilder::EXECUTABLE);
    let text = kernel.put(&[0xcc; 0x1000]);
    let ips_at = KERNEL + 0x2000;
    let ips = [(0, 0), (1, 0x800), (2, 0x1000)]
        .map(|(index, start)| (KERNEL + start).wrapping_sub(ips_at + 4 * index).to_le_bytes());
    let ips: Vec<u8> = ips.iter().flat_map(|ip| &ip[..4]).copied().collect();
    let header =
        *b"\xfe\x5d\x32\xbf\x58\x1b\xd6\x3b\x2c\xa9\xa5\xc6\x5b\xa5\xa6\x25\xea\xb3\xfe\x24";
    let entries = [[24, 0, 0, 0, 5, 2], [0, 0, 0, 0, 5, 11], [0; 6]].concat();
    let names = b"\0.orc_unwind_ip\0.orc_unwind\0.orc_header\0.notes\0";
    let section = |name, addr, offset, size: usize| ElfSection {
        name,
        kind: if name == 0 { 3 } else { 1 },
        addr,
        offset,
        size: size.try_into().unwrap(),
        ..ElfSection::default()
    };
    for (name, addr, bytes) in [
        (1, ips_at, &*ips),
        (16, KERNEL + 0x3000, &*entries),
        (28, KERNEL + 0x4000, &header),
        (40, KERNEL + 0x1800, NOTES),
        (0, 0, names),
    ] {
        let offset = kernel.put(bytes);
        kernel.section(section(name, addr, offset, bytes.len()));
    }
    kernel.names = 5;
    kernel.segments.push(ElfSegment {
        kind: 1,
        flags: 5,
        offset: text,
        addr: KERNEL,
        file_size: 0x1000,
        memory_size: 0x1000,
        align: 0x1000,
    });
    kernel.finish()
}

/// What tells that kernel from others.
const NOTES: &[u8] = b"the build id of a kernel";

/// A vCPU in that kernel, which the code of [`Machine::long`] has entered.
fn in_kernel() -> Machine {
    let mut machine = Machine::long(4);
    let four = [39, 30, 21, 12];
    machine.map_8(&four, KERNEL_STACK);
    machine.map_8(&four, KERNEL + MOVED_BY + 0x1000);
    // The page is the same for all: each part of it is of one.
    let at = usize::try_from(STACK).unwrap() + 0x800;
    machine.ram[at..at + NOTES.len()].copy_from_slice(NOTES);
    machine.write_8(STACK + 0x210, KERNEL + MOVED_BY + 0x810);
    let regs = STACK + 0x218;
    for (offset, value) in [
        (32, STACK_64 + 0x110),
        (128, 0x40_1000),
        (136, 0x33),
        (152, STACK_64 + 0x100),
        (160, 0x2b),
    ] {
        machine.write_8(regs + offset, value);
    }
    machine.registers = machine
        .registers
        .replace("CPL=3", "CPL=0")
        .replace("RIP=0000000000401000", &format!("RIP={:016x}", KERNEL + MOVED_BY + 0x10))
        .replace(
            &format!("RSP={:016x}", STACK_64 + 0x100),
            &format!("RSP={:016x}", KERNEL_STACK + 0x200),
        );
    machine
}

#[test]
fn a_kernel_is_found_and_its_stack_leads_to_the_user_code_that_has_entered_it() {
    let played = in_kernel().start("kernel");
    let file = played.socket.with_file_name("vmlinux");
    fs::write(&file, kernel()).unwrap();
    let symbols = ["--symbols", file.to_str().unwrap()];
    let vcpu = vcpu(&played.run(&[&symbols[..], &["--json"]].concat()));
    let expected = [KERNEL + MOVED_BY + 0x10, KERNEL + MOVED_BY + 0x810];
    assert_eq!(pcs(&vcpu), expected.map(|pc| format!("{pc:#x}")), "{vcpu:#}");
    assert_eq!(
        (&vcpu["frames"][1]["found_by"], &vcpu["end"]["complete"]),
        (&json!("orc"), &json!(true))
    );
    assert_eq!(vcpu["frames"][1]["object_pc"], format!("{:#x}", KERNEL + 0x810));
    assert_eq!(pcs(&vcpu["user"]), ["0x401000", "0x401111", "0x402222"], "{vcpu:#}");
    assert_eq!(vcpu["user"]["arch"], "x86-64");
    played.commands();

    let played = in_kernel().start("kernel-folded");
    let file = played.socket.with_file_name("vmlinux");
    fs::write(&file, kernel()).unwrap();
    let text = played.run(&["--symbols", file.to_str().unwrap(), "--sample", "2", "--hz", "1000"]);
    let kernel = "[kernel];vmlinux+0xffffffff81000810;vmlinux+0xffffffff81000010";
    assert_eq!(text, format!("[user];[incomplete];0x402222;0x401111;0x401000;{kernel} 2\n"));
    played.commands();
}

#[test]
fn a_kernel_that_the_guest_does_not_have_is_told() {
    let played = Machine::long(4).start("other-kernel");
    let file = played.socket.with_file_name("vmlinux");
    fs::write(&file, kernel()).unwrap();
    let report: Value =
        serde_json::from_str(&played.run(&["--symbols", file.to_str().unwrap(), "--json"]))
            .unwrap();
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.ends_with("the guest does not have this kernel in its memory"), "{warning}");
    played.commands();
}
