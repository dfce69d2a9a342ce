//! The kernel and the user programs, as ELF files: which function is at an
//! address, and its instructions.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// Labels of the kernel's linker script.
const BOUNDS: &[&str] = &[
    "text_start",
    "text_end",
    "entry_text_start",
    "entry_text_end",
    "whole_frame_start",
    "whole_frame_end",
];

/// Whether a label is one of a linker, at a function but none.
fn is_bound(name: &str) -> bool {
    BOUNDS.contains(&name) || name.starts_with("__start_") || name.starts_with("__stop_")
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) name: String,
}

/// One ELF file.
#[derive(Debug)]
pub(crate) struct Image {
    functions: Vec<Function>,
    code: Vec<(u64, Vec<u8>)>,
    pub(crate) bits: u32,
}

impl Image {
    fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = object::File::parse(&*bytes)?;
        let mut code = Vec::new();
        for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
            code.push((section.address(), section.data()?.to_vec()));
        }
        let mut functions: Vec<Function> = file
            .symbols()
            .filter(|symbol| {
                // Assembly has labels that are not marked as functions.
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
                    && symbol.name().is_ok_and(|name| !name.is_empty() && !is_bound(name))
                    && code.iter().any(|(start, bytes)| {
                        (*start..start + bytes.len() as u64).contains(&symbol.address())
                    })
            })
            .map(|symbol| Function {
                start: symbol.address(),
                end: symbol.address() + symbol.size(),
                name: short_name(symbol.name().unwrap_or_default()),
            })
            .collect();
        functions.sort_by_key(|function| (function.start, function.end));
        functions.dedup_by(|b, a| a.start == b.start && a.end == b.end);
        Self::close_gaps(&mut functions, &code);
        let bits = if file.is_64() { 64 } else { 32 };
        Ok(Self { functions, code, bits })
    }

    /// An image of functions without code: names, starts and ends, ascending.
    #[cfg(test)]
    pub(crate) fn of_functions(functions: &[(&str, u64, u64)]) -> Self {
        let function =
            |&(name, start, end): &(&str, u64, u64)| Function { start, end, name: name.to_owned() };
        Self { functions: functions.iter().map(function).collect(), code: Vec::new(), bits: 64 }
    }

    /// A label without a size reaches up to the next one.
    fn close_gaps(functions: &mut [Function], code: &[(u64, Vec<u8>)]) {
        let starts: Vec<u64> = functions.iter().map(|function| function.start).collect();
        for (at, function) in functions.iter_mut().enumerate() {
            if function.end == function.start {
                let next = starts[at..].iter().find(|start| **start > function.start);
                let section = code.iter().find(|(start, bytes)| {
                    (*start..start + bytes.len() as u64).contains(&function.start)
                });
                let end = section.map_or(function.start, |(start, b)| start + b.len() as u64);
                function.end = next.map_or(end, |next| end.min(*next));
            }
        }
    }

    /// The function that holds an address.
    pub(crate) fn function(&self, addr: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.start <= addr);
        // Labels within a function come after it: the widest is the function.
        self.functions[..after]
            .iter()
            .rev()
            .take(8)
            .filter(|function| addr < function.end)
            .max_by_key(|function| function.end - function.start)
    }

    /// The bytes of the code from `start` to `end`.
    pub(crate) fn bytes(&self, start: u64, end: u64) -> Option<&[u8]> {
        let (at, bytes) = self
            .code
            .iter()
            .find(|(at, bytes)| (*at..=at + bytes.len() as u64).contains(&start))?;
        bytes.get(usize::try_from(start - at).ok()?..usize::try_from(end - at).ok()?)
    }
}

/// A symbol as it is written, without its hash and the kernel's own name.
fn short_name(symbol: &str) -> String {
    let name = format!("{:#}", rustc_demangle::demangle(symbol));
    name.strip_prefix("demo_kernel::").unwrap_or(&name).to_owned()
}

/// All files of a run.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) kernel: Image,
    programs: BTreeMap<String, Image>,
}

impl Images {
    pub(crate) fn open(kernel: &Path, programs: &Path) -> Result<Self, Box<dyn Error>> {
        let mut images = Self { kernel: Image::open(kernel)?, programs: BTreeMap::new() };
        for entry in fs::read_dir(programs)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            images.programs.insert(name, Image::open(&path)?);
        }
        Ok(images)
    }

    /// A kernel without programs.
    #[cfg(test)]
    pub(crate) const fn of_kernel(kernel: Image) -> Self {
        Self { kernel, programs: BTreeMap::new() }
    }

    pub(crate) fn program(&self, name: &str) -> Option<&Image> {
        self.programs.get(name)
    }
}
