//! The function symbols of an ELF file, and their names as a person reads them.

pub(crate) mod data;
pub(crate) mod few;
pub(crate) mod named;

use std::sync::Arc;

use memchr::memchr;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, LittleEndian, pod};

use crate::demangle::demangle;
use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::elf::section::Section;
use crate::files::debug_files::DebugFiles;
use crate::untrusted::{Untrusted, plain};

/// How many bytes of a symbol table are read at once: a multiple of the sizes
/// of both kinds of entry, 16 and 24.
const CHUNK: u64 = 48 << 10;
/// The longest name that is read, in bytes, and that is shown: some short names
/// unfold to gigabytes.
pub const NAME_LIMIT: u64 = 64 << 10;
/// How many symbols that start before an address are tried. Functions nest a
/// few deep at most.
const NESTING_LIMIT: usize = 1 << 12;

/// The functions of one file, by link-time address.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Sorted by start, and for one start from worst to best.
    symbols: Vec<Symbol>,
    /// The file with the names, where it is not the one that was asked for.
    debug_file: Option<Arc<ElfFile>>,
}

/// A function that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, demangled where it was mangled.
    pub name: Untrusted,
    /// The name in the file, where it was mangled.
    pub(crate) mangled: Option<Untrusted>,
    /// Its first link-time address.
    pub start: u64,
    /// Past its last byte.
    pub end: u64,
}

/// One of the names that a function has in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// As it is in the file, with a version if it has one.
    pub name: Vec<u8>,
    /// Past the last byte that it names.
    pub end: u64,
    pub rank: Rank,
}

/// One symbol, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    start: u64,
    /// Past its last byte.
    end: u64,
    /// The highest `end` of this symbol and all before it.
    furthest_end: u64,
    /// Where the file has the name.
    name: u64,
    rank: Rank,
}

/// How good a name is, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Without a size: often a label inside a function in assembly code.
    Label,
    Local,
    Weak,
    Global,
}

impl Symbols {
    /// Reads the symbols of a file: its own table of all functions, else that
    /// of the separate debug file with the same build id, else the table of
    /// exported functions.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if the file has a table and it is damaged.
    pub fn read(file: &ElfFile) -> Result<Self, ElfError> {
        Self::read_with(file, || usual_debug_file(file))
    }

    /// The same; `debug_file` finds the file with what was stripped off this one.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_with(
        file: &ElfFile,
        debug_file: impl FnOnce() -> Option<Arc<ElfFile>>,
    ) -> Result<Self, ElfError> {
        let sections = file.sections()?;
        let all = read_table(file, sections, elf::SHT_SYMTAB)?;
        if !all.is_empty() {
            return Ok(Self { symbols: all, debug_file: None });
        }
        if let Some(debug_file) = debug_file() {
            let sections = debug_file.sections()?;
            let symbols = read_table(&debug_file, sections, elf::SHT_SYMTAB)?;
            if !symbols.is_empty() {
                return Ok(Self { symbols, debug_file: Some(debug_file) });
            }
        }
        let symbols = read_table(file, sections, elf::SHT_DYNSYM)?;
        Ok(Self { symbols, debug_file: None })
    }

    /// The function that holds a link-time address. `file` is the one that the
    /// symbols were read from.
    pub fn find(&self, file: &ElfFile, addr: u64) -> Option<Function> {
        self.find_within(file, addr, NAME_LIMIT)
    }

    /// The same, of whose name no more than `limit` bytes are read. A longer one is
    /// cut, and not demangled.
    pub fn find_within(&self, file: &ElfFile, addr: u64, limit: u64) -> Option<Function> {
        self.function(file, self.find_symbol(addr)?, limit)
    }

    /// The functions of a name as the file has it; if there is none, those of whose
    /// names it is the demangled form. Ascending by start.
    pub fn named(&self, file: &ElfFile, name: &[u8], limit: u64) -> Vec<Function> {
        let names = self.debug_file.as_deref().unwrap_or(file);
        let len = u64::try_from(name.len()).unwrap_or(u64::MAX).saturating_add(2);
        let is_named = |symbol: &&Symbol| {
            let found = read_name(names, symbol.name, len);
            found.is_some_and(|found| found == name)
        };
        let mut found: Vec<_> = self
            .symbols
            .iter()
            .filter(is_named)
            .filter_map(|symbol| self.function(file, symbol, limit))
            .collect();
        if found.is_empty() {
            let functions =
                self.symbols.iter().filter_map(|symbol| self.function(file, symbol, limit));
            let is_plain = |function: &Function| {
                function.mangled.is_some() && function.name.as_bytes() == name
            };
            found = functions.filter(is_plain).collect();
        }
        // Several names of one function are one function.
        found.dedup_by_key(|function| function.start);
        found
    }

    fn function(&self, file: &ElfFile, symbol: &Symbol, limit: u64) -> Option<Function> {
        function_of(self.debug_file.as_deref().unwrap_or(file), symbol, limit)
    }

    /// The start of the function that holds a link-time address, and its names: at most
    /// `limit`. `file` is the one that the symbols were read from.
    pub fn aliases(&self, file: &ElfFile, addr: u64, limit: usize) -> Option<(u64, Vec<Alias>)> {
        let start = self.find_symbol(addr)?.start;
        let first = self.symbols.partition_point(|symbol| symbol.start < start);
        let same = self.symbols.get(first..)?.iter().take_while(|symbol| symbol.start == start);
        let file = self.debug_file.as_deref().unwrap_or(file);
        let aliases = same.take(limit).filter_map(|symbol| {
            let name = read_whole_name(file, symbol.name, NAME_LIMIT)?;
            Some(Alias { name, end: symbol.end, rank: symbol.rank })
        });
        Some((start, aliases.collect()))
    }

    fn find_symbol(&self, addr: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= addr);
        let mut label = None;
        for symbol in self.symbols.get(..after)?.iter().rev().take(NESTING_LIMIT) {
            if symbol.furthest_end <= addr {
                break;
            }
            if addr < symbol.end {
                if symbol.rank != Rank::Label {
                    return Some(symbol);
                }
                label = label.or(Some(symbol));
            }
        }
        label
    }
}

/// The function of a symbol of this file, of whose name no more than `limit` bytes are
/// read.
fn function_of(file: &ElfFile, symbol: &Symbol, limit: u64) -> Option<Function> {
    let name = read_name(file, symbol.name, limit)?;
    let is_whole = u64::try_from(name.len()).is_ok_and(|len| len < limit);
    // Names of a few bytes may unfold to as much as is let.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Mangled names are ASCII.
    let text = plain(&name).filter(|_| is_whole);
    let demangled = text.and_then(|text| demangle(text, limit));
    let name = Untrusted::from(name);
    let (name, mangled) = match demangled {
        Some(demangled) => (demangled.into(), Some(name)),
        None => (name, None),
    };
    Some(Function { name, mangled, start: symbol.start, end: symbol.end })
}

/// The file with what was stripped off another, where distributions put it.
fn usual_debug_file(file: &ElfFile) -> Option<Arc<ElfFile>> {
    DebugFiles::default().find(file, None).ok().flatten().map(Arc::new)
}

/// Reads the first symbol table of a kind, sorted for lookups.
fn read_table(
    file: &ElfFile,
    sections: &[Section],
    kind: elf::SectionType,
) -> Result<Vec<Symbol>, ElfError> {
    let mut symbols = Vec::new();
    for_each_of_kind(file, sections, kind, |_, _| true, |symbol| symbols.push(symbol))?;
    Ok(sorted(symbols))
}

/// The symbols of a table, made ready for lookups.
fn sorted(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    symbols.sort_unstable_by_key(|symbol| (symbol.start, symbol.rank, symbol.end, symbol.name));
    end_labels(&mut symbols);
    let mut furthest_end = 0;
    for symbol in &mut symbols {
        furthest_end = symbol.end.max(furthest_end);
        symbol.furthest_end = furthest_end;
    }
    symbols
}

/// Calls `with` with each function of the first symbol table of a kind, in its order, of those
/// whose start and size are `wanted`.
fn for_each_of_kind(
    file: &ElfFile,
    sections: &[Section],
    kind: elf::SectionType,
    wanted: impl Fn(u64, u64) -> bool,
    with: impl FnMut(Symbol),
) -> Result<(), ElfError> {
    let Some(table) = sections.iter().find(|section| section.kind == kind) else { return Ok(()) };
    // Known when this is compiled for nearly all files, since it is asked at each field.
    match file.endian {
        Endianness::Little if file.is_64 => {
            for_each_function::<FileHeader64<_>>(file, LittleEndian, sections, table, wanted, with)
        }
        endian if file.is_64 => {
            for_each_function::<FileHeader64<_>>(file, endian, sections, table, wanted, with)
        }
        endian => for_each_function::<FileHeader32<_>>(file, endian, sections, table, wanted, with),
    }
}

/// A symbol without a size reaches to the next one; its `end` is the end of its
/// section until then.
fn end_labels(symbols: &mut [Symbol]) {
    let mut next_start = u64::MAX;
    let mut previous_start = u64::MAX;
    for symbol in symbols.iter_mut().rev() {
        if symbol.start != previous_start {
            next_start = previous_start;
            previous_start = symbol.start;
        }
        if symbol.rank == Rank::Label {
            symbol.end = symbol.end.min(next_start);
        }
    }
}

/// Calls `with` with each function of a table that is `wanted`, in its order.
fn for_each_function<H: FileHeader>(
    file: &ElfFile,
    endian: H::Endian,
    sections: &[Section],
    table: &Section,
    wanted: impl Fn(u64, u64) -> bool,
    mut with: impl FnMut(Symbol),
) -> Result<(), ElfError> {
    /// Bytes of a table at most. The largest programs have some 200 MiB.
    const MOST: u64 = 1 << 30;
    if table.size > MOST {
        return Err(ElfError::TooLarge { part: Part::Symbols, len: table.size });
    }
    let entry_size = u64::try_from(size_of::<H::Sym>()).unwrap_or(u64::MAX);
    if table.entry_size != entry_size {
        return Err(ElfError::EntrySize { part: Part::Symbols, size: table.entry_size });
    }
    let names = usize::try_from(table.link).ok().and_then(|index| sections.get(index));
    let names =
        names.ok_or(ElfError::NoSuchSection { part: Part::SymbolNames, index: table.link })?;
    let mut code = CodeRanges::new(file, sections);

    let mut done = 0;
    while done < table.size {
        let len = table.size.saturating_sub(done).min(CHUNK);
        let at = table.offset.saturating_add(done);
        let bytes = file.bytes(Part::Symbols, at, len)?;
        let count = bytes.len().checked_div(size_of::<H::Sym>()).unwrap_or(0);
        let entries: &[H::Sym] = pod::slice_from_bytes(&bytes, count).map_or(&[], |(s, _)| s);
        for entry in entries {
            let base = match file.kind {
                elf::ET_REL => sections.get(usize::from(entry.st_shndx(endian).0)),
                _ => None,
            };
            let base = base.map_or(0, |section| section.addr);
            let start = base.wrapping_add(entry.st_value(endian).into());
            if wanted(start, entry.st_size(endian).into())
                && let Some(symbol) = function(endian, entry, names, &mut code, start)
            {
                with(symbol);
            }
        }
        done = done.saturating_add(len);
    }
    Ok(())
}

/// The symbol of a table's entry, if that is a function or a label in code.
fn function<S: Sym>(
    endian: S::Endian,
    entry: &S,
    names: &Section,
    code: &mut CodeRanges,
    start: u64,
) -> Option<Symbol> {
    let kind = entry.st_type();
    if !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE)
        || matches!(entry.st_shndx(endian), elf::SHN_UNDEF | elf::SHN_ABS)
    {
        return None;
    }
    let size: u64 = entry.st_size(endian).into();
    let code_end = code.end_of(start)?;
    let name = u64::from(entry.st_name(endian));
    if name == 0 || name >= names.size {
        return None;
    }
    let (rank, end) = match entry.st_bind() {
        _ if size == 0 => (Rank::Label, code_end),
        elf::STB_GLOBAL => (Rank::Global, start.saturating_add(size)),
        elf::STB_WEAK => (Rank::Weak, start.saturating_add(size)),
        _ => (Rank::Local, start.saturating_add(size)),
    };
    Some(Symbol { start, end, furthest_end: 0, name: names.offset.checked_add(name)?, rank })
}

/// Where a file has code: its executable sections, or segments where it has no
/// such section.
struct CodeRanges {
    /// Sorted.
    ranges: Vec<(u64, u64)>,
    /// The one that was found last: most symbols are of the same one.
    last: (u64, u64),
}

impl CodeRanges {
    fn new(file: &ElfFile, sections: &[Section]) -> Self {
        let range = |(addr, size): (u64, u64)| (addr, addr.saturating_add(size));
        let sections = sections.iter().filter(|section| section.executable);
        let mut ranges: Vec<_> = sections.map(|s| range((s.addr, s.size))).collect();
        if ranges.is_empty() {
            let segments = file.segments.iter().filter(|segment| segment.executable);
            ranges = segments.map(|s| range((s.addr, s.memory_size))).collect();
        }
        ranges.sort_unstable();
        Self { ranges, last: (0, 0) }
    }

    /// The end of the range that holds `addr`.
    fn end_of(&mut self, addr: u64) -> Option<u64> {
        if !(self.last.0..self.last.1).contains(&addr) {
            let after = self.ranges.partition_point(|&(start, _)| start <= addr);
            self.last = *self.ranges.get(after.checked_sub(1)?)?;
        }
        (addr < self.last.1).then_some(self.last.1)
    }
}

/// Reads a name, without its version.
fn read_name(file: &ElfFile, at: u64, limit: u64) -> Option<Vec<u8>> {
    let mut name = read_whole_name(file, at, limit)?;
    name.truncate(without_version(&name).len());
    Some(name)
}

/// Reads the text up to a zero, or to a limit of length.
pub fn read_whole_name(file: &ElfFile, at: u64, limit: u64) -> Option<Vec<u8>> {
    let rest = file.byte_len().checked_sub(at)?;
    // Nearly all names fit the first read.
    for len in [limit.min(256), limit] {
        let mut bytes = file.bytes(Part::SymbolNames, at, rest.min(len)).ok()?;
        let end = memchr(0, &bytes);
        if end.is_some() || len == limit {
            bytes.truncate(end.unwrap_or(bytes.len()));
            return Some(bytes);
        }
    }
    None
}

/// Full symbol tables have the version of an exported symbol after its name:
/// `read@@GLIBC_2.2.5`.
fn without_version(name: &[u8]) -> &[u8] {
    let len = memchr(b'@', name).filter(|&at| at != 0).unwrap_or(name.len());
    name.get(..len).unwrap_or(name)
}

#[cfg(test)]
mod tests;
