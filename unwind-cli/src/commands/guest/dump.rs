//! The dump of a machine's memory: an ELF core file by physical addresses, as QEMU's `dump-guest-memory` and the
//! `/proc/vmcore` of a Linux that a crashed one has started.

use std::fs::File;
use std::path::Path;

use object::elf::Machine;
use unwind_guest::{Segment, VcpuRegisters};
use unwind_target::elf::ElfFile;
use unwind_target::elf::notes::Note;
use unwind_target::target::held_process::general_registers;
use unwind_target::target::registers::UserRegisters;
use unwind_target::untrusted::plain;
use unwind_target::{ElfError, InputError};

use crate::commands::guest::error::GuestError;
use crate::commands::guest::ram::{GuestRam, MemoryMap};
use crate::commands::guest::registers::{CpuPlace, VcpuState};
use crate::failure::Failure;

/// The CPUs and the memory of a machine at one moment.
pub(crate) struct MachineDump {
    pub(crate) cpus: Vec<VcpuState>,
    pub(crate) ram: GuestRam,
}

/// What a note says of a CPU.
const NT_PRSTATUS: u32 = 1;
/// Where in it the number of the thread is, and where the registers are.
const PRSTATUS_THREAD: usize = 32;
const PRSTATUS_REGISTERS: usize = 112;

/// Control registers of Linux that runs, where the dump has none: protection and paging, physical addresses of more
/// than 32 bits, five levels; system calls excepted, long mode, and pages without code.
const CR0: u64 = 0x8000_0001;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER: u64 = 0xd00;

/// Where Linux has its image, whatever it was moved by.
const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

impl MachineDump {
    /// Reads the dump of a 64-bit machine; `None` if it is the core file of a process.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it cannot be read, or says nothing of a CPU.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Failure> {
        let failed = |error| InputError::Elf { path: path.to_owned(), error };
        // What is read once, as a pipe, is left to others.
        let file = Some(path).filter(|path| path.is_file()).and_then(|path| File::open(path).ok());
        let Some(file) = file else { return Ok(None) };
        let Ok(core) = ElfFile::from_file(file) else { return Ok(None) };
        let notes = Notes::read(&core).map_err(failed)?;
        if !notes.is_of_machine || !core.is_64 {
            return Ok(None);
        }
        let cpus = notes.cpus();
        if cpus.is_empty() {
            return Err(GuestError::NoCpus { path: path.to_owned() }.into());
        }
        let map = MemoryMap::of_dump(&core);
        Ok(Some(Self { cpus, ram: GuestRam::open(path, map)? }))
    }
}

/// The notes that matter.
#[derive(Default)]
struct Notes {
    is_of_machine: bool,
    /// Of each CPU, as the dump's writer has it from the CPU.
    by_qemu: Vec<VcpuState>,
    /// Of each CPU, as for a thread, and which thread it ran.
    by_status: Vec<(VcpuRegisters, u32)>,
    /// What the kernel says of itself, in lines.
    vmcoreinfo: Vec<u8>,
}

impl Notes {
    fn read(core: &ElfFile) -> Result<Self, ElfError> {
        let mut this = Self::default();
        for segment in core.note_segments() {
            segment?.notes().for_each(|note| this.take(core.machine, &note));
        }
        Ok(this)
    }

    fn take(&mut self, machine: Machine, note: &Note<'_>) {
        match (note.name, note.kind) {
            (b"QEMU", 0) => {
                self.is_of_machine = true;
                self.by_qemu.extend(of_qemu(note.desc));
            }
            (b"VMCOREINFO", 0) => {
                self.is_of_machine = true;
                self.vmcoreinfo = note.desc.to_vec();
            }
            (b"CORE", NT_PRSTATUS) => self.by_status.extend(of_status(machine, note.desc)),
            _ => {}
        }
    }

    fn cpus(self) -> Vec<VcpuState> {
        let tables = self.kernel_tables();
        let with_tables = |registers| VcpuRegisters { cr3: tables.0, cr4: tables.1, ..registers };
        if !self.by_qemu.is_empty() {
            return self.by_qemu;
        }
        let state = |(cpu, (registers, tid))| VcpuState {
            registers: with_tables(registers),
            place: CpuPlace::Crashed { cpu, tid },
            is_halted: false,
        };
        (0..).zip(self.by_status).map(state).collect()
    }

    /// The root of the kernel's own page tables, and the control register that says how many levels they have.
    fn kernel_tables(&self) -> (u64, u64) {
        let root = self.number(b"SYMBOL(swapper_pg_dir)=", 16).unwrap_or(0);
        let phys_base = self.number(b"NUMBER(phys_base)=", 10).unwrap_or(0);
        let root = root.wrapping_sub(START_KERNEL_MAP).wrapping_add(phys_base);
        let is_five = self.number(b"NUMBER(pgtable_l5_enabled)=", 10) == Some(1);
        (root, if is_five { CR4_PAE | CR4_LA57 } else { CR4_PAE })
    }

    fn number(&self, name: &[u8], radix: u32) -> Option<u64> {
        let lines = self.vmcoreinfo.split(|&byte| byte == b'\n');
        let digits = lines.filter_map(|line| line.strip_prefix(name)).next()?;
        let digits = plain(digits)?;
        match digits.strip_prefix('-') {
            Some(digits) => Some(u64::from_str_radix(digits, radix).ok()?.wrapping_neg()),
            None => u64::from_str_radix(digits, radix).ok(),
        }
    }
}

/// The words of a note from a place on.
fn words<const N: usize>(desc: &[u8], at: usize) -> Option<[u64; N]> {
    let mut words = [0; N];
    let (bytes, _) = desc.get(at..)?.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(bytes.get(..N)?) {
        *word = u64::from_le_bytes(*bytes);
    }
    Some(words)
}

/// QEMU's own note: its version and size, 18 registers, ten segments of 24 bytes, five control registers.
fn of_qemu(desc: &[u8]) -> Option<VcpuState> {
    const REGISTERS: usize = 8;
    const CS: usize = REGISTERS + 18 * 8;
    const GS: usize = CS + 4 * 24;
    const SS: usize = CS + 5 * 24;
    const GDT: usize = CS + 8 * 24;
    const CONTROL: usize = CS + 10 * 24;
    let [rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags] =
        words(desc, REGISTERS)?;
    let [cr0, _, _, cr3, cr4] = words(desc, CONTROL)?;
    let cs = segment(words(desc, CS)?);
    let ([_, _, gdt], [_, _, gs]) = (words(desc, GDT)?, words(desc, GS)?);
    let registers = VcpuRegisters {
        general: [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15],
        rip,
        rflags,
        cs,
        ss: Segment { dpl: low_byte(u64::from(cs.selector)) & 3, ..segment(words(desc, SS)?) },
        cr0,
        cr3,
        cr4,
        // QEMU writes such notes in long mode only.
        efer: EFER,
    };
    Some(VcpuState { registers, place: CpuPlace::Segments { gdt, gs }, is_halted: false })
}

/// A segment of QEMU's: selector and limit, the upper half of the descriptor, the base.
fn segment([selector, flags, base]: [u64; 3]) -> Segment {
    let [low, high, ..] = selector.to_le_bytes();
    Segment {
        base,
        selector: u16::from_le_bytes([low, high]),
        dpl: low_byte(flags >> 13) & 3,
        l: flags & 1 << 21 != 0,
        db: flags & 1 << 22 != 0,
    }
}

const fn low_byte(word: u64) -> u8 {
    let [low, ..] = word.to_le_bytes();
    low
}

/// The registers of a thread's note, which are those of a CPU where the kernel has crashed, and the thread's number.
fn of_status(machine: Machine, desc: &[u8]) -> Option<(VcpuRegisters, u32)> {
    let tid = desc.get(PRSTATUS_THREAD..)?.first_chunk().copied().map(u32::from_le_bytes)?;
    let registers = UserRegisters::from_core(machine, desc.get(PRSTATUS_REGISTERS..)?)?;
    let segment = |selector: u64| {
        let [low, high, ..] = selector.to_le_bytes();
        let dpl = low & 3;
        Segment { base: 0, selector: u16::from_le_bytes([low, high]), dpl, l: true, db: false }
    };
    let cs = segment(registers.cs);
    let registers = VcpuRegisters {
        general: general_registers(&registers),
        rip: registers.rip,
        rflags: registers.eflags,
        cs,
        ss: Segment { dpl: cs.dpl, ..segment(registers.ss) },
        cr0: CR0,
        cr3: 0,
        cr4: CR4_PAE,
        efer: EFER,
    };
    Some((registers, tid))
}
