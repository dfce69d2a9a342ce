//! A core file: the threads, registers, mappings and memory of a process that
//! has ended.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use memchr::memchr;
use object::elf::{self, Machine};
use unwind_core::{Memory, VirtAddr};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::elf::notes::Note;
use crate::elf::segment::Segment;
use crate::input_error::InputError;
use crate::target::compressed_core;
use crate::target::error::TargetError;

use crate::target::maps::{Backing, MappedFile, Mapping};
use crate::target::memory::CoreMemory;
use crate::target::registers::UserRegisters;

/// What the notes of a core file say.
#[derive(Debug, Default)]
pub(crate) struct CoreFile {
    /// In the order of the file: the thread that got the signal comes first.
    pub(crate) threads: Vec<CoreThread>,
    /// The id of the process, or 0 if it is not known.
    pub(crate) process: i32,
    /// The name of the program, without its directory and cut to 15 bytes.
    pub(crate) program: Vec<u8>,
    pub(crate) mappings: Vec<Mapping>,
    /// How many bytes the file lacks at its end.
    pub(crate) missing: u64,
    /// What is wrong with the first of the note segments that were left out.
    pub(crate) damage: Option<ElfError>,
    /// The address of the program's first instruction, where it is known.
    entry: Option<u64>,
    vdso: Option<u64>,
}

/// One thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreThread {
    pub(crate) id: i32,
    /// The signal that it got, or 0.
    pub(crate) signal: i32,
    pub(crate) registers: UserRegisters,
}

/// Where the fields of the notes are, in bytes; the word size makes the
/// difference.
struct Layout {
    word: usize,
    /// In a thread's status: the signal, the id and the registers.
    signal: usize,
    thread: usize,
    registers: usize,
    /// In the process's description: the id and the name.
    process: usize,
    program: usize,
}

/// `struct elf_prstatus` and `struct elf_prpsinfo` of x86-64.
const LAYOUT_64: Layout =
    Layout { word: 8, signal: 12, thread: 32, registers: 112, process: 24, program: 40 };

/// The same of i386.
const LAYOUT_32: Layout =
    Layout { word: 4, signal: 12, thread: 24, registers: 72, process: 12, program: 28 };

/// The length of the program's name in its note.
const PROGRAM_LEN: usize = 16;

const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

const AT_ENTRY: u64 = 9;
const AT_SYSINFO_EHDR: u64 = 33;

/// Opens a core file of x86-64 or i386.
///
/// # Errors
///
/// [`TargetError`] if it cannot be read, is no core file or one of another machine.
pub(crate) fn open(path: &Path) -> Result<ElfFile, TargetError> {
    let mut file =
        open_file(path).map_err(|error| InputError::Read { path: path.into(), error })?;
    if compressed_core::is_compressed(&file) {
        file = compressed_core::decompress(&file)
            .map_err(|error| TargetError::CompressedCore { path: path.into(), error })?;
    }
    let file =
        ElfFile::from_file(file).map_err(|error| InputError::Elf { path: path.into(), error })?;
    accept(file, path)
}

/// Whether a file is a core file that can be read.
///
/// # Errors
///
/// [`TargetError`] if it is none, or one of another machine.
pub(crate) fn accept(file: ElfFile, path: &Path) -> Result<ElfFile, TargetError> {
    if file.kind != elf::ET_CORE {
        return Err(TargetError::NotACore { path: path.into() });
    }
    if layout(&file).is_none() {
        return Err(TargetError::CoreMachine { path: path.into(), machine: machine_name(&file) });
    }
    Ok(file)
}

/// Opens a file, or for `-` standard input. What has no places to read from, as a
/// pipe has none, is copied into a file without a name, which is gone with the
/// command.
fn open_file(path: &Path) -> io::Result<File> {
    let mut file = if path.as_os_str() == "-" {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        File::open(path)?
    };
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
        let mut copy = tempfile::tempfile()?;
        io::copy(&mut file, &mut copy)?;
        file = copy;
    }
    Ok(file)
}

fn layout(core: &ElfFile) -> Option<Layout> {
    match (core.machine, core.is_64) {
        (elf::EM_X86_64, true) => Some(LAYOUT_64),
        (elf::EM_386, false) => Some(LAYOUT_32),
        _ => None,
    }
}

fn machine_name(core: &ElfFile) -> String {
    match core.machine {
        // 32-bit pointers in 64-bit mode.
        elf::EM_X86_64 => "x32".into(),
        elf::EM_AARCH64 => "AArch64".into(),
        elf::EM_ARM => "ARM".into(),
        elf::EM_S390 => "s390x".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_PPC64 => "POWER".into(),
        Machine(number) => format!("ELF machine {number}"),
    }
}

impl CoreFile {
    /// Reads the notes of `core`, which is at `path`.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if no thread is found.
    pub(crate) fn parse(core: &ElfFile, path: &Path) -> Result<Self, TargetError> {
        let mut found = Self { missing: missing_bytes(core), ..Self::default() };
        let Some(layout) = layout(core) else {
            return Err(TargetError::CoreMachine {
                path: path.into(),
                machine: machine_name(core),
            });
        };
        let code = CodeByStart::new(core);
        for segment in core.note_segments() {
            match segment {
                Ok(segment) => {
                    segment.notes().for_each(|note| found.read_note(core, &layout, &code, &note))
                }
                Err(error) => found.damage = found.damage.or(Some(error)),
            }
        }
        if found.threads.is_empty() {
            let path = path.into();
            return Err(match found.damage {
                Some(error) => InputError::Elf { path, error }.into(),
                None => TargetError::NoThreads { path },
            });
        }
        found.add_unnamed_mappings(core);
        Ok(found)
    }

    fn read_note(&mut self, core: &ElfFile, layout: &Layout, code: &CodeByStart, note: &Note<'_>) {
        if note.name != b"CORE" {
            return;
        }
        match note.kind {
            NT_PRSTATUS => {
                let thread = read_thread(core.machine, layout, note.desc);
                // The kernel writes the signal into the status of each thread;
                // the one that got it is the first.
                let is_first = self.threads.is_empty();
                self.threads.extend(thread.map(|thread| CoreThread {
                    signal: if is_first { thread.signal } else { 0 },
                    ..thread
                }));
            }
            NT_PRPSINFO => {
                self.process = read_i32(note.desc, layout.process).unwrap_or(0);
                let name = note.desc.get(layout.program..).unwrap_or_default();
                let name = name.get(..PROGRAM_LEN).unwrap_or(name);
                let len = memchr(0, name).unwrap_or(name.len());
                self.program = name.get(..len).unwrap_or_default().to_vec();
            }
            NT_AUXV => self.read_auxv(layout, note.desc),
            NT_FILE => {
                self.mappings.extend(read_files(code, layout, note.desc).unwrap_or_default())
            }
            _ => {}
        }
    }

    fn read_auxv(&mut self, layout: &Layout, desc: &[u8]) {
        let mut words = Words { rest: desc, size: layout.word };
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            match key {
                AT_ENTRY => self.entry = Some(value),
                AT_SYSINFO_EHDR => self.vdso = Some(value),
                _ => {}
            }
        }
    }

    /// The list of files has neither the vDSO nor memory without a name.
    fn add_unnamed_mappings(&mut self, core: &ElfFile) {
        let named: HashSet<u64> = self.mappings.iter().map(|mapping| mapping.range.start).collect();
        let unnamed = loads(core).filter(|segment| !named.contains(&segment.addr));
        self.mappings.extend(unnamed.map(|segment| Mapping {
            range: segment.addr..segment.addr.saturating_add(segment.memory_size),
            executable: segment.executable,
            access: None,
            offset: 0,
            backing: if self.vdso == Some(segment.addr) {
                Backing::Vdso
            } else {
                Backing::Anonymous
            },
        }));
    }

    /// Puts the file that the user names in the place of the program's own. In
    /// a core without a list of files it is mapped as its headers say. Returns
    /// the path that it had.
    pub(crate) fn replace_program(&mut self, path: &Path, file: &ElfFile) -> Option<PathBuf> {
        let backing = Backing::File(MappedFile { path: path.into(), id: None, deleted: false });
        let entry = self.entry.unwrap_or(file.entry);
        let program = self.mappings.iter().find(|mapping| mapping.range.contains(&entry));
        if let Some(Backing::File(program)) = program.map(|mapping| mapping.backing.clone()) {
            let old = Backing::File(program.clone());
            let same = self.mappings.iter_mut().filter(|mapping| mapping.backing == old);
            same.for_each(|mapping| mapping.backing = backing.clone());
            return Some(program.path);
        }
        let bias = entry.wrapping_sub(file.entry);
        let loads = loads(file).filter(|segment| segment.file_size != 0);
        self.mappings.extend(loads.map(|segment| Mapping {
            range: mapped_range(segment, bias),
            executable: segment.executable,
            access: None,
            offset: segment.offset,
            backing: backing.clone(),
        }));
        None
    }

    /// What backs the code of the program, if that is known.
    pub(crate) fn program(&self) -> Option<&Backing> {
        let entry = self.entry?;
        let mapping = self.mappings.iter().find(|mapping| mapping.range.contains(&entry))?;
        Some(&mapping.backing)
    }

    /// The build ids of the mapped files, by path, as far as the core has the
    /// first page of a file, where the id is.
    pub(crate) fn build_ids(&self, memory: &mut CoreMemory) -> HashMap<PathBuf, Vec<u8>> {
        /// How often a file may be mapped from its start for the id to be found.
        const TRIES: u32 = 4;
        let mut ids = HashMap::new();
        let mut tries = HashMap::<_, u32>::new();
        for mapping in self.mappings.iter().filter(|mapping| mapping.offset == 0) {
            let Backing::File(file) = &mapping.backing else { continue };
            let tries = tries.entry(&file.path).or_default();
            *tries = tries.saturating_add(1);
            if *tries > TRIES || ids.contains_key(&file.path) {
                continue;
            }
            let mut page = vec![0; 4096];
            let start = VirtAddr::new(mapping.range.start);
            if memory.read(start, &mut page).is_ok()
                && let Ok(headers) = ElfFile::from_bytes(page)
                && let Some(id) = headers.build_id()
            {
                ids.insert(file.path.clone(), id);
            }
        }
        ids
    }
}

/// Whether the segments of a core are code, by the address where they start.
struct CodeByStart(HashMap<u64, bool>);

impl CodeByStart {
    fn new(core: &ElfFile) -> Self {
        let mut code = HashMap::new();
        for segment in loads(core) {
            // The first one counts.
            code.entry(segment.addr).or_insert(segment.executable);
        }
        Self(code)
    }
}

fn mapped_range(segment: &Segment, bias: u64) -> Range<u64> {
    let start = segment.addr.wrapping_add(bias);
    start..start.saturating_add(segment.file_size)
}

fn loads(file: &ElfFile) -> impl Iterator<Item = &Segment> {
    file.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD)
}

/// How far the segments reach past the end of the file.
fn missing_bytes(core: &ElfFile) -> u64 {
    let ends = loads(core).map(|segment| segment.offset.saturating_add(segment.file_size));
    ends.max().unwrap_or(0).saturating_sub(core.byte_len())
}

fn read_thread(machine: Machine, layout: &Layout, desc: &[u8]) -> Option<CoreThread> {
    let [low, high] = *desc.get(layout.signal..)?.first_chunk()?;
    Some(CoreThread {
        id: read_i32(desc, layout.thread)?,
        signal: u16::from_le_bytes([low, high]).into(),
        registers: UserRegisters::from_core(machine, desc.get(layout.registers..)?)?,
    })
}

/// The list of mapped files.
///
/// ```text
///     word       how many there are
///     word       bytes of the unit that offsets count in
///     3 words    of each: start, end, offset
///     then the path of each, with a zero after it
/// ```
fn read_files(code: &CodeByStart, layout: &Layout, desc: &[u8]) -> Option<Vec<Mapping>> {
    let mut words = Words { rest: desc, size: layout.word };
    let count = usize::try_from(words.next()?).ok()?;
    let unit = words.next()?;
    let table_len = layout.word.checked_mul(3)?.checked_mul(count)?;
    let mut paths = words.rest.get(table_len..)?;
    let mut mappings = Vec::new();
    for _ in 0..count {
        let (start, end, offset) = (words.next()?, words.next()?, words.next()?);
        let len = memchr(0, paths)?;
        let (path, rest) = paths.split_at_checked(len)?;
        paths = rest.get(1..)?;
        mappings.push(Mapping {
            range: start..end,
            // Debuggers leave out of the core what is unchanged in the file.
            executable: code.0.get(&start).copied().unwrap_or(true),
            access: None,
            offset: offset.checked_mul(unit)?,
            backing: Backing::File(MappedFile::new(path.to_vec(), None)),
        });
    }
    Some(mappings)
}

fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().copied().map(i32::from_le_bytes)
}

/// Little-endian words of four or eight bytes.
struct Words<'a> {
    rest: &'a [u8],
    size: usize,
}

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.rest.split_at_checked(self.size)?;
        self.rest = rest;
        Some(word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }
}
