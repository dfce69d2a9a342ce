//! Holds `ProvenFrames` against the CPU: steps a thread of a running process instruction by
//! instruction, keeps a stack of the calls that it has seen, and compares each row that is proved
//! of code in anonymous memory with that.
//!
//! ```text
//! proven_steps PROCESS [THREAD [STEPS [MAP]]]
//! ```
//!
//! `MAP` is a file like `/tmp/perf-PID.map`, which tells where functions begin and end. What is a
//! call and what a return says `iced-x86`, not the decoder of this library.

#![allow(clippy::arithmetic_side_effects, reason = "counts, and places of a stack")]

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt::Write as _;
use std::io::IoSliceMut;
use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use unwind_core::{Memory, ReadError, VirtAddr, Walker};
use unwind_x86::{FunctionBounds, ProvenFrames, X86_64, X86_64Regs};

/// Where the caller continues that is known by a call.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Where the return address is.
    slot: u64,
    ra: u64,
}

/// The functions of a map.
#[derive(Debug, Default)]
struct Functions(BTreeMap<u64, (u64, String)>);

impl Functions {
    fn read(path: Option<&str>) -> Result<Self, Box<dyn Error>> {
        let mut functions = BTreeMap::new();
        let Some(path) = path else { return Ok(Self::default()) };
        for line in String::from_utf8_lossy(&std::fs::read(path)?).lines() {
            let mut parts = line.splitn(3, ' ');
            let mut number = || {
                let digits = parts.next()?;
                u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
            };
            if let (Some(start), Some(len)) = (number(), number()) {
                let name = parts.next().unwrap_or_default().to_owned();
                functions.insert(start, (start.saturating_add(len), name));
            }
        }
        Ok(Self(functions))
    }

    fn of(&self, addr: u64) -> Option<(u64, u64, &str)> {
        let (start, (end, name)) = self.0.range(..=addr).next_back()?;
        (addr < *end).then_some((*start, *end, name))
    }
}

impl FunctionBounds for Functions {
    fn find(&self, addr: VirtAddr) -> Option<Range<VirtAddr>> {
        let (start, end, _) = self.of(addr.get())?;
        Some(VirtAddr::new(start)..VirtAddr::new(end))
    }
}

/// The memory of the process between two steps.
struct Target {
    process: Pid,
    pages: HashMap<u64, Option<Box<[u8; 4096]>>>,
}

impl Memory for Target {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        for (at, byte) in (addr.get()..).zip(buf) {
            let start = at & !0xfff;
            let process = self.process;
            let page = self.pages.entry(start).or_insert_with(|| {
                let mut page = Box::new([0; 4096]);
                let remote = [RemoteIoVec { base: usize::try_from(start).unwrap_or(0), len: 4096 }];
                let read = process_vm_readv(process, &mut [IoSliceMut::new(&mut *page)], &remote);
                (read == Ok(4096)).then_some(page)
            });
            let offset = usize::try_from(at & 0xfff).map_err(|_| ReadError::Invalid)?;
            let found = page.as_ref().and_then(|page| page.get(offset));
            *byte = *found.ok_or(ReadError::Invalid)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    in_memory: u64,
    proved: u64,
    right: u64,
    not_comparable: u64,
    callers_right: u64,
    replaced: u64,
    wrong: u64,
    unproved: BTreeMap<String, u64>,
}

fn anonymous_code(process: Pid) -> Result<Vec<Range<u64>>, Box<dyn Error>> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let ranges = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights) = (fields.next()?, fields.next()?);
        let name = fields.nth(3).unwrap_or_default();
        let (start, end) = range.split_once('-')?;
        let is_wanted = rights.contains('x') && !name.starts_with('/') && !name.starts_with("[v");
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(number(start)?..number(end)?).filter(|_| is_wanted)
    });
    Ok(ranges.collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).map(|arg| arg.parse::<i32>()).transpose();
    let Some(process) = number(0)? else {
        return Err("usage: proven_steps PROCESS [THREAD [STEPS [MAP]]]".into());
    };
    let thread = Pid::from_raw(number(1)?.unwrap_or(process));
    let process = Pid::from_raw(process);
    let steps = number(2)?.unwrap_or(100_000);
    let map = args.get(3).map(String::as_str);
    let mut functions = Functions::read(map)?;
    let mut code = anonymous_code(process)?;
    let mut calls: Vec<Call> = Vec::new();
    let mut popped: Option<u64> = None;
    let mut tally = Tally::default();
    let mut memory = Target { process, pages: HashMap::new() };
    let mut signal = None;

    ptrace::attach(thread)?;
    waitpid(thread, Some(nix::sys::wait::WaitPidFlag::__WALL))?;
    for step in 0..steps {
        if step % 20_000 == 0 {
            functions = Functions::read(map)?;
            code = anonymous_code(process)?;
        }
        let regs = ptrace::getregs(thread)?;
        memory.pages.clear();
        let mut bytes = [0; 15];
        if memory.read(VirtAddr::new(regs.rip), &mut bytes).is_err() {
            return Err(format!("no code at {:#x}", regs.rip).into());
        }
        let instruction = Decoder::with_ip(64, &bytes, regs.rip, DecoderOptions::NONE).decode();
        tally.steps += 1;
        if code.iter().any(|range| range.contains(&regs.rip)) {
            tally.in_memory += 1;
            let all = [
                regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
                regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
            ];
            let start = X86_64Regs::from_all(regs.rip, all);
            compare(start, &functions, &mut memory, &calls, &mut tally, &instruction);
        }
        ptrace::step(thread, signal.take())?;
        match waitpid(thread, Some(nix::sys::wait::WaitPidFlag::__WALL))? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, other) => signal = Some(other),
            ended => {
                println!("ended: {ended:?}");
                break;
            }
        }
        let after = ptrace::getregs(thread)?;
        follow(&mut calls, &mut popped, &instruction, &regs, &after);
    }
    _ = ptrace::detach(thread, None);
    let Tally { steps, in_memory, proved, right, not_comparable, callers_right, wrong, .. } = tally;
    println!("{steps} instructions, {in_memory} of them in code in memory");
    println!(
        "{proved} proved: {right} right, {not_comparable} whose call was not seen, {wrong} wrong"
    );
    println!("{callers_right} callers in such code right, {} pushed by no call", tally.replaced);
    let mut unproved: Vec<_> = tally.unproved.into_iter().collect();
    unproved.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let all: u64 = unproved.iter().map(|(_, count)| count).sum();
    println!("{all} not proved");
    for (name, count) in unproved.iter().take(25) {
        println!("{count:8} {name}");
    }
    if wrong > 0 { Err("a row was wrong".into()) } else { Ok(()) }
}

/// Keeps the calls that have not returned.
fn follow(
    calls: &mut Vec<Call>,
    popped: &mut Option<u64>,
    instruction: &Instruction,
    before: &nix::libc::user_regs_struct,
    after: &nix::libc::user_regs_struct,
) {
    let is_call =
        matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    if is_call && after.rsp == before.rsp.wrapping_sub(8) {
        calls.push(Call { slot: after.rsp, ra: instruction.next_ip() });
        return;
    }
    // Code that moves its return address takes it into a register meanwhile.
    let is_pop =
        instruction.mnemonic() == Mnemonic::Pop && instruction.op0_kind() == OpKind::Register;
    if let Some(last) = calls.last().filter(|last| is_pop && last.slot == before.rsp) {
        *popped = Some(last.ra);
    }
    if let Some(ra) = *popped
        && instruction.mnemonic() == Mnemonic::Push
        && value(instruction, after) == Some(ra)
    {
        *popped = None;
        calls.retain(|call| call.slot > after.rsp);
        calls.push(Call { slot: after.rsp, ra });
        return;
    }
    if instruction.code() == Code::Syscall {
        return;
    }
    while calls.last().is_some_and(|call| call.slot < after.rsp) {
        calls.pop();
    }
}

fn value(instruction: &Instruction, regs: &nix::libc::user_regs_struct) -> Option<u64> {
    Some(match instruction.op0_register() {
        Register::RAX => regs.rax,
        Register::RBX => regs.rbx,
        Register::RCX => regs.rcx,
        Register::RDX => regs.rdx,
        Register::RSI => regs.rsi,
        Register::RDI => regs.rdi,
        Register::R8 => regs.r8,
        Register::R9 => regs.r9,
        Register::R10 => regs.r10,
        Register::R11 => regs.r11,
        Register::R12 => regs.r12,
        Register::R13 => regs.r13,
        Register::R14 => regs.r14,
        Register::R15 => regs.r15,
        _ => return None,
    })
}

/// Compares the frames that are proved from here on with the calls that were seen.
fn compare(
    regs: X86_64Regs,
    functions: &Functions,
    memory: &mut Target,
    calls: &[Call],
    tally: &mut Tally,
    instruction: &Instruction,
) {
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, ProvenFrames::new(functions));
    let mut frames = walker.frames(regs, memory);
    let mut expected = calls.iter().rev();
    let Some(first) = frames.next() else { return };
    let place = || {
        let pc = first.pc.addr().get();
        let name = functions.of(pc).map_or("?", |(_, _, name)| name);
        let mut text = String::new();
        _ = write!(text, "{name} {pc:#x} {:?}", instruction.code());
        text
    };
    let Some(mut cfa) = first.cfa else {
        let pc = first.pc.addr().get();
        let name =
            functions.of(pc).map_or_else(|| format!("{pc:#x}"), |(_, _, name)| name.to_owned());
        *tally.unproved.entry(name).or_default() += 1;
        return;
    };
    tally.proved += 1;
    let mut is_first = true;
    loop {
        let Some(call) = expected.next() else {
            tally.not_comparable += u64::from(is_first);
            return;
        };
        let caller = frames.next();
        let pc = caller.map(|caller| caller.pc.addr().get());
        if !is_first && cfa <= call.slot && pc == Some(call.ra) {
            // V8 pushes a return address itself when it continues a function in its interpreter.
            tally.replaced += 1;
            return;
        }
        if cfa != call.slot + 8 || pc != Some(call.ra) {
            tally.wrong += 1;
            if tally.wrong < 20 {
                println!("wrong at {}: CFA {cfa:#x}, RA {pc:x?}, by the calls {call:x?}", place());
            }
            return;
        }
        if is_first {
            tally.right += 1;
        } else {
            tally.callers_right += 1;
        }
        is_first = false;
        match caller.and_then(|caller| caller.cfa) {
            Some(next) => cfa = next,
            None => return,
        }
    }
}
