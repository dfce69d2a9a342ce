//! The functions of the running kernel, for recordings of it.

use std::fs;

use object::Endianness;

use crate::elf::notes::{NOTE_GNU_BUILD_ID, Notes};
use crate::symbols::Rank;
use crate::untrusted::plain;

/// The functions of a kernel, as `/proc/kallsyms` lists them.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols {
    /// By address; several may have the same.
    symbols: Vec<KernelSymbol>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelSymbol {
    pub(crate) addr: u64,
    pub(crate) name: Box<str>,
    pub(crate) rank: Rank,
    /// The name of the module that it is in.
    module: Option<Box<str>>,
}

impl KernelSymbols {
    /// Those of the running kernel; none if the recording is of a kernel with another build
    /// id, or if this user may not see the addresses.
    pub(crate) fn of_running(recorded: Option<&[u8]>) -> Self {
        if recorded.is_some_and(|id| running_build_id().as_deref() != Some(id)) {
            return Self::default();
        }
        fs::read("/proc/kallsyms").map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        let lines = text.split(|&byte| byte == b'\n').filter_map(plain_with_tab);
        let mut symbols: Vec<_> = lines.filter_map(parse_line).collect();
        // All are zero for those who may not see them.
        symbols.retain(|symbol| symbol.addr != 0);
        symbols.sort_by_key(|symbol| symbol.addr);
        Self { symbols }
    }

    /// The start of the function that holds an address, and its names.
    pub(crate) fn find(&self, addr: u64, module: Option<&str>) -> Option<&[KernelSymbol]> {
        let after = self.symbols.partition_point(|symbol| symbol.addr <= addr);
        let last = self.symbols.get(after.checked_sub(1)?)?;
        let first = self.symbols.partition_point(|symbol| symbol.addr < last.addr);
        let found = self.symbols.get(first..after)?;
        found.iter().any(|symbol| symbol.module.as_deref() == module).then_some(found)
    }
}

/// How many functions a list has, and how long their names are that are found by their addresses.
pub(crate) fn listed(text: &[u8]) -> (usize, usize) {
    let symbols = KernelSymbols::parse(text);
    let found = symbols.symbols.iter().filter_map(|symbol| {
        let found = symbols.find(symbol.addr, symbol.module.as_deref())?;
        found.first().map(|first| first.name.len())
    });
    (symbols.symbols.len(), found.sum())
}

/// `ffffffff81000130 T entry_SYSCALL_64_after_hwframe`, after it the module in brackets.
fn parse_line((symbol, module): (&str, Option<&str>)) -> Option<KernelSymbol> {
    let (addr, rest) = symbol.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let module = module.and_then(|module| module.strip_prefix('[')?.strip_suffix(']'));
    let rank = match kind {
        "W" | "w" => Rank::Weak,
        "T" | "D" | "B" => Rank::Global,
        "t" | "d" | "b" => Rank::Local,
        _ => return None,
    };
    let addr = u64::from_str_radix(addr, 16).ok()?;
    Some(KernelSymbol { addr, name: name.into(), rank, module: module.map(Into::into) })
}

/// A line, split at the tab before a module.
fn plain_with_tab(line: &[u8]) -> Option<(&str, Option<&str>)> {
    let mut parts = line.splitn(2, |&byte| byte == b'\t');
    let symbol = plain(parts.next()?)?;
    Some((symbol, parts.next().and_then(plain)))
}

/// The build id of the running kernel.
fn running_build_id() -> Option<Vec<u8>> {
    let notes = fs::read("/sys/kernel/notes").ok()?;
    let endian = if cfg!(target_endian = "big") { Endianness::Big } else { Endianness::Little };
    let mut notes = Notes::new(&notes, endian, 4);
    let note = notes.find(|note| note.name == b"GNU" && note.kind == NOTE_GNU_BUILD_ID)?;
    Some(note.desc.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_an_address_of_the_kernel_belongs_to_the_function_before_it() {
        let symbols = KernelSymbols::parse(
            b"0000000000000000 A fixed_percpu_data\n\
             ffffffff81000000 T _text\n\
             ffffffff81000000 T startup_64\n\
             ffffffff81000130 t helper\n\
             ffffffff81000140 W weak\n\
             ffffffffc0000000 t hook\t[some_module]\n",
        );
        let names = |addr, module| -> Vec<&str> {
            let found = symbols.find(addr, module).unwrap_or_default();
            found.iter().map(|symbol| &*symbol.name).collect()
        };
        assert_eq!(names(0xffff_ffff_8100_0000, None), ["_text", "startup_64"]);
        assert_eq!(names(0xffff_ffff_8100_0131, None), ["helper"]);
        assert_eq!(names(0xffff_ffff_80ff_ffff, None), [""; 0]);
        assert_eq!(names(0xffff_ffff_c000_0010, None), [""; 0]);
        assert_eq!(names(0xffff_ffff_c000_0010, Some("some_module")), ["hook"]);
        assert_eq!(symbols.find(0xffff_ffff_8100_0141, None).unwrap()[..].len(), 1);
    }
}
