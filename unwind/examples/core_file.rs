//! Walks the stack of the first thread of a core file, by the `.eh_frame` of each mapped file.
//!
//! ```sh
//! cargo run -p unwind-kit --example core_file -- core
//! ```
//!
//! A core file says where everything is: its notes have the registers of each thread and which
//! file is mapped where, its segments have the memory. Code is not among these, as it is in the
//! files; so are the tables.
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::{env, fs};

use object::elf::{NT_FILE, NT_PRSTATUS, PT_LOAD, PT_NOTE};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{LittleEndian as LE, Object as _, ObjectSection as _};
use unwind::cfi::{CfiAbi, CfiSection, CfiTable};
use unwind::{SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};

type Elf<'a> = ElfFile64<'a, LE>;

/// What a core file has of a process.
#[derive(Default)]
struct Core<'a> {
    memory: Vec<SliceMemory<'a>>,
    registers: Option<X86_64Regs>,
    mappings: Vec<Mapping>,
}

/// A part of a file, mapped from an address on.
struct Mapping {
    start: u64,
    /// Of its first byte, in the file.
    offset: u64,
    path: String,
}

impl<'a> Core<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Box<dyn Error>> {
        let mut core = Self::default();
        for segment in Elf::parse(bytes)?.elf_program_headers() {
            match segment.p_type(LE) {
                PT_LOAD => {
                    let data = segment.data(LE, bytes).map_err(|()| "a segment is cut off")?;
                    core.memory.push(SliceMemory::new(VirtAddr::new(segment.p_vaddr(LE)), data));
                }
                PT_NOTE => {
                    let mut notes = segment.notes(LE, bytes)?.ok_or("no notes")?;
                    while let Some(note) = notes.next()? {
                        match note.n_type(LE) {
                            NT_PRSTATUS if core.registers.is_none() => {
                                core.registers = registers(note.desc());
                            }
                            NT_FILE => core.mappings = mappings(note.desc()).unwrap_or_default(),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(core)
    }
}

fn word(bytes: &[u8], number: usize) -> Option<u64> {
    let at = number.checked_mul(8)?;
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The registers of a thread, from its note: they follow 112 bytes of other things, in the order
/// of Linux's `user_regs_struct`.
fn registers(note: &[u8]) -> Option<X86_64Regs> {
    /// Where those with DWARF's numbers 0 to 15 are: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to
    /// r15.
    const PLACES: [usize; 16] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
    const RIP: usize = 16;
    let saved = note.get(112..)?;
    let mut general = [0; 16];
    for (register, place) in general.iter_mut().zip(PLACES) {
        *register = word(saved, place)?;
    }
    Some(X86_64Regs::from_all(word(saved, RIP)?, general))
}

/// What is mapped: a count, the size of a page, for each mapping start, end and offset in pages,
/// then their paths.
fn mappings(note: &[u8]) -> Option<Vec<Mapping>> {
    let count = usize::try_from(word(note, 0)?).ok()?;
    let page = word(note, 1)?;
    let paths = note.get(count.checked_mul(24)?.checked_add(16)?..)?;
    let each = (0..count).zip(paths.split(|&byte| byte == 0)).map(|(number, path)| {
        let at = number.checked_mul(3)?.checked_add(2)?;
        Some(Mapping {
            start: word(note, at)?,
            offset: word(note, at.checked_add(2)?)?.checked_mul(page)?,
            path: String::from_utf8_lossy(path).into_owned(),
        })
    });
    each.collect()
}

/// Adds the call frame information of a file, if this mapping is of its code.
fn add_code<'a>(
    unwinder: &mut Unwinder<'a, 64>,
    mapping: &Mapping,
    file: &'a [u8],
) -> Result<(), Box<dyn Error>> {
    const EXECUTABLE: u32 = 1;
    const PAGE: u64 = 4096;
    let elf = Elf::parse(file)?;
    let section = |name| -> Result<Option<(&'a [u8], u64)>, object::Error> {
        let Some(section) = elf.section_by_name(name) else { return Ok(None) };
        Ok(Some((section.data()?, section.address())))
    };
    let (Some((frames, frames_at)), Some((header, header_at))) =
        (section(".eh_frame")?, section(".eh_frame_hdr")?)
    else {
        return Ok(());
    };
    let code = elf.elf_program_headers().iter().find(|segment| {
        let first_page = segment.p_offset(LE) & !(PAGE - 1);
        let flags = segment.p_flags(LE).0;
        segment.p_type(LE) == PT_LOAD && flags & EXECUTABLE != 0 && first_page == mapping.offset
    });
    let Some(code) = code else { return Ok(()) };
    // How far above its linked addresses it is loaded.
    let bias = mapping.start.wrapping_sub(code.p_vaddr(LE) & !(PAGE - 1));
    let start = code.p_vaddr(LE).wrapping_add(bias);
    let end = start.checked_add(code.p_memsz(LE)).ok_or("code that ends nowhere")?;
    let frames = CfiSection::eh_frame(frames, frames_at);
    let table = CfiTable::with_search_table(frames, CfiAbi::X86_64, header, header_at)?;
    if let Some(table) = table {
        unwinder.add_call_frames(start..end, table.bias(bias))?;
    }
    Ok(())
}

/// Writes the frames of the first thread, innermost first, and why there are no more.
pub(crate) fn write_stack(core: &[u8], out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let core = Core::read(core)?;
    let mut files = BTreeMap::new();
    for mapping in &core.mappings {
        if let Ok(file) = fs::read(&mapping.path) {
            files.entry(mapping.path.as_str()).or_insert(file);
        }
    }
    let mut unwinder = Unwinder::<64>::new();
    for mapping in &core.mappings {
        let Some(file) = files.get(mapping.path.as_str()) else { continue };
        // A file without a table, or that is no program, leaves the others as they are.
        if let Err(error) = add_code(&mut unwinder, mapping, file) {
            writeln!(out, "{}: {error}", mapping.path.escape_debug())?;
        }
    }
    let mut trace = Trace::<[_; 510]>::new();
    let registers = core.registers.ok_or("the core file has no thread")?;
    unwinder.walk(registers, &mut core.memory.as_slice(), &mut trace);
    for frame in trace.frames() {
        writeln!(out, "{:#018x}  {}", frame.pc.addr().get(), frame.provenance.origin())?;
    }
    let end = trace.end().map_or_else(String::new, |end| end.to_string());
    writeln!(out, "{end}; complete: {}", trace.is_complete())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("which core file? core_file PATH")?;
    write_stack(&fs::read(path)?, &mut io::stdout().lock())
}
