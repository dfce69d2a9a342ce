//! The side of gdb of its remote protocol: registers and memory of a guest whose monitor has a stub for gdb. Nothing in the
//! guest is changed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use unwind_guest::{Segment, VcpuRegisters};
use unwind_target::Untrusted;

use crate::commands::guest::error::GuestError;
use crate::commands::guest::gdb_packets::{Packets, ascii_of, hex_of, of_hex};
use crate::commands::guest::gdb_registers::RegisterLayout;
use crate::commands::guest::registers::{CpuPlace, MissingRegister, VcpuState};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most vCPUs that a guest may have.
const VCPU_LIMIT: usize = 1 << 14;

/// How many documents a description of registers has at most, and how many bytes each.
const DOCUMENTS: usize = 16;
const DOCUMENT_LIMIT: usize = 1 << 18;

/// How many bytes the monitor may answer: the map of memory has 100 KiB, and more with many devices.
const TEXT_LIMIT: usize = 4 << 20;

/// How many bytes of memory are read at once, and how many such blocks are kept while the guest stands.
pub(crate) const BLOCK: usize = 1024;
const BLOCKS: usize = 1 << 12;

/// A connection to a stub.
#[derive(Debug)]
pub(crate) struct Gdb {
    packets: Packets,
    layout: RegisterLayout,
    threads: Vec<String>,
    is_running: bool,
    /// The signals that waited before the connection: until the guest runs again all do, so that none
    /// leaves it standing.
    signals: Option<SigSet>,
    /// What was read of memory since the guest stands.
    blocks: HashMap<u64, Option<[u8; BLOCK]>>,
}

impl Gdb {
    /// Connects to a stub, `HOST:PORT` or the path of a socket. The guest stands from then on.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if there is none, it does not answer in time, or it tells less than is needed.
    pub(crate) fn connect(address: &str) -> Result<Self, GuestError> {
        let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
        let packets = Packets::connect(address, PATIENCE)?;
        let (layout, threads, blocks) = Default::default();
        let mut gdb = Self { packets, layout, threads, is_running: false, signals, blocks };
        gdb.packets.ask("qSupported:xmlRegisters=i386")?;
        // Where a stub does not stop the guest by itself, this says that it runs.
        gdb.packets.ask("?")?;
        gdb.layout = gdb.read_layout()?;
        gdb.expect_ok("Qqemu.PhyMemMode:1")?;
        gdb.threads = gdb.read_threads()?;
        Ok(gdb)
    }

    /// How many vCPUs there are.
    pub(crate) const fn vcpus(&self) -> usize {
        self.threads.len()
    }

    /// The registers of a vCPU.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if they are not told.
    pub(crate) fn state(&mut self, vcpu: u64) -> Result<VcpuState, GuestError> {
        let thread = usize::try_from(vcpu).ok().and_then(|vcpu| self.threads.get(vcpu));
        let select = format!("Hg{}", thread.map_or("0", String::as_str));
        self.expect_ok(&select)?;
        let answer = self.packets.ask("g")?;
        let bytes = of_hex(&answer).ok_or(GuestError::NotGdb)?;
        let failed = |missing| GuestError::Registers { vcpu, missing };
        self.state_of(&bytes).map_err(failed)
    }

    fn state_of(&self, bytes: &[u8]) -> Result<VcpuState, MissingRegister> {
        const LONG_MODE: u64 = 1 << 10;
        /// Linux's segment of 32-bit user code.
        const USER_32: u16 = 0x23;
        let need = |name: &'static str| self.layout.value(name, bytes).ok_or(MissingRegister(name));
        let names = [
            "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        let mut general = [0; 16];
        for (register, name) in general.iter_mut().zip(names) {
            *register = need(name)?;
        }
        let efer = need("efer")?;
        let segment = |name| -> Result<Segment, MissingRegister> {
            let [low, high, ..] = need(name)?.to_le_bytes();
            let selector = u16::from_le_bytes([low, high]);
            // Their descriptors are not told: Linux's have no base, and 64-bit code but for that segment.
            let l = efer & LONG_MODE != 0 && selector != USER_32;
            Ok(Segment { base: 0, selector, dpl: low & 3, l, db: !l })
        };
        let (cs, ss) = (segment("cs")?, segment("ss")?);
        let registers = VcpuRegisters {
            general,
            rip: need("rip")?,
            rflags: need("eflags")?,
            cs,
            ss: Segment { dpl: cs.dpl, ..ss },
            cr0: need("cr0")?,
            cr3: need("cr3")?,
            cr4: need("cr4")?,
            efer,
        };
        let place = CpuPlace::Bases { used: need("gs_base")?, other: need("k_gs_base")? };
        // A stub does not tell whether one waits for an interrupt.
        Ok(VcpuState { registers, place, is_halted: false })
    }

    /// Whether the guest runs.
    pub(crate) const fn is_running(&self) -> bool {
        self.is_running
    }

    /// Stops the guest.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the stub does not do so.
    pub(crate) fn stop(&mut self) -> Result<(), GuestError> {
        if self.is_running {
            self.packets.interrupt()?;
            self.is_running = false;
        }
        Ok(())
    }

    /// Lets the guest run.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the connection is broken.
    pub(crate) fn resume(&mut self) -> Result<(), GuestError> {
        if !self.is_running {
            self.blocks.clear();
            self.packets.send("c")?;
            self.is_running = true;
        }
        if let Some(signals) = self.signals.take() {
            // It was this thread's mask a moment ago.
            let _ = signals.thread_set_mask();
        }
        Ok(())
    }

    /// Gives all answers up to `deadline` no more time than until then.
    pub(crate) const fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.packets.set_deadline(deadline);
    }

    /// Executes a command of the monitor, as QEMU's stub does, and returns its text.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the stub does not.
    pub(crate) fn monitor(&mut self, command: &str) -> Result<String, GuestError> {
        let ask = format!("qRcmd,{}", hex_of(command.as_bytes()));
        self.packets.in_time(|packets| {
            let mut text = Vec::new();
            let mut answer = packets.ask(&ask)?;
            while answer != b"OK" {
                let Some(part) = answer.strip_prefix(b"O").and_then(of_hex) else {
                    return Err(refused("qRcmd", &answer));
                };
                if text.len() > TEXT_LIMIT {
                    return Err(GuestError::TooLong);
                }
                text.extend(part);
                answer = packets.receive()?;
            }
            ascii_of(&text).ok_or(GuestError::NotGdb)
        })
    }

    /// Reads physical memory, in whole blocks; `None` where there is none.
    pub(crate) fn read(&mut self, addr: u64, buf: &mut [u8]) -> Option<()> {
        let size = u64::try_from(BLOCK).ok()?;
        let (mut addr, mut buf) = (addr, buf);
        while !buf.is_empty() {
            let start = addr & !size.wrapping_sub(1);
            let at = usize::try_from(addr.wrapping_sub(start)).ok()?;
            let block = self.block(start)?;
            let there = block.get(at..)?;
            let len = there.len().min(buf.len());
            let (here, rest) = buf.split_at_mut_checked(len)?;
            here.copy_from_slice(there.get(..len)?);
            addr = start.checked_add(size)?;
            buf = rest;
        }
        Some(())
    }

    fn block(&mut self, start: u64) -> Option<[u8; BLOCK]> {
        if let Some(known) = self.blocks.get(&start) {
            return *known;
        }
        let answer = self.packets.ask(&format!("m{start:x},{BLOCK:x}")).ok()?;
        // An answer that is no error and is shorter is of a part of it.
        let block = of_hex(&answer).and_then(|bytes| <[u8; BLOCK]>::try_from(bytes).ok());
        if self.blocks.len() >= BLOCKS {
            self.blocks.clear();
        }
        self.blocks.insert(start, block);
        block
    }

    /// Leaves the stub as it was, and the guest running.
    fn leave(&mut self) -> Result<(), GuestError> {
        self.stop()?;
        self.expect_ok("Qqemu.PhyMemMode:0")?;
        self.expect_ok("D")?;
        self.is_running = true;
        // The signals.
        self.resume()
    }

    fn expect_ok(&mut self, command: &str) -> Result<(), GuestError> {
        let answer = self.packets.ask(command)?;
        if answer == b"OK" { Ok(()) } else { Err(refused(command, &answer)) }
    }

    /// What the stub tells of its registers: a document, and others that this names.
    fn read_layout(&mut self) -> Result<RegisterLayout, GuestError> {
        let mut layout = RegisterLayout::default();
        let mut documents = vec!["target.xml".to_owned()];
        let mut next = 0;
        while let Some(name) = documents.get(next).cloned() {
            let text = self.document(&name)?;
            documents.extend(layout.add(&text));
            documents.truncate(DOCUMENTS);
            next = next.saturating_add(1);
        }
        Ok(layout)
    }

    fn document(&mut self, name: &str) -> Result<String, GuestError> {
        let mut text = Vec::new();
        loop {
            let command = format!("qXfer:features:read:{name}:{:x},7f0", text.len());
            let answer = self.packets.ask(&command)?;
            let (part, is_last) = match answer.split_first() {
                Some((b'm', part)) if !part.is_empty() => (part, false),
                Some((b'l', part)) => (part, true),
                _ => return Err(refused("qXfer:features:read", &answer)),
            };
            text.extend_from_slice(part);
            if text.len() > DOCUMENT_LIMIT {
                return Err(GuestError::TooLong);
            }
            if is_last {
                return ascii_of(&text).ok_or(GuestError::NotGdb);
            }
        }
    }

    fn read_threads(&mut self) -> Result<Vec<String>, GuestError> {
        let mut threads = Vec::new();
        let mut answer = self.packets.ask("qfThreadInfo")?;
        while let Some(list) = answer.strip_prefix(b"m") {
            let list = ascii_of(list).ok_or(GuestError::NotGdb)?;
            threads.extend(list.split(',').map(str::to_owned));
            if threads.len() > VCPU_LIMIT {
                return Err(GuestError::TooManyVcpus(threads.len()));
            }
            answer = self.packets.ask("qsThreadInfo")?;
        }
        let is_thread = |thread: &String| {
            thread.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        };
        if threads.is_empty() || !threads.iter().all(is_thread) {
            return Err(GuestError::NotGdb);
        }
        Ok(threads)
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // A guest that is left standing stays so when the connection ends.
        if self.leave().is_err() {
            let _ = self.resume();
        }
    }
}

fn refused(command: &str, answer: &[u8]) -> GuestError {
    let text = match answer {
        b"" => "it does not know that".into(),
        answer => Untrusted::from(answer),
    };
    GuestError::StubRefuses { command: command.into(), text }
}

/// Reads answers of a stub, for a fuzz target. Returns how many bytes and registers there are in them.
pub(crate) fn read_stub(bytes: &[u8]) -> usize {
    let mut layout = RegisterLayout::default();
    let more = layout.add(&ascii_of(bytes).unwrap_or_default());
    let values = ["rax", "rip", "efer"].map(|name| layout.value(name, bytes).is_some());
    let values = values.into_iter().filter(|is_there| *is_there).count();
    more.len().saturating_add(values).saturating_add(Packets::decode_all(bytes))
}
