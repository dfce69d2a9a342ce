//! The guest's file: what is loaded of it, its tables and its symbols.

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

/// The guest, as `build.rs` assembles it.
const FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"));

/// A file of which user code and kernel are known.
#[derive(Debug)]
pub struct GuestImage {
    file: object::File<'static>,
}

impl GuestImage {
    /// The guest of this example.
    pub fn new() -> Self {
        Self { file: object::File::parse(FILE).expect("an ELF file") }
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &'static [u8] {
        FILE
    }

    /// What is loaded: bytes, where in the file they are, and where in memory.
    pub fn segments(&self) -> impl Iterator<Item = (&'static [u8], u64, u64)> {
        self.file.segments().map(|segment| {
            let bytes = segment.data().expect("within the file");
            (bytes, segment.file_range().0, segment.address())
        })
    }

    /// A section: its bytes and its address.
    pub fn section(&self, name: &str) -> (&'static [u8], u64) {
        let section = self.file.section_by_name(name).expect("the linker script names it");
        (section.data().expect("within the file"), section.address())
    }

    /// The address of a symbol.
    pub fn addr(&self, name: &str) -> u64 {
        self.file.symbol_by_name(name).expect("the guest defines it").address()
    }

    /// All symbols: their names, addresses and whether they are functions.
    pub fn symbols(&self) -> impl Iterator<Item = (&'static str, u64, bool)> {
        self.file.symbols().filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some((name, symbol.address(), symbol.kind() == SymbolKind::Text))
        })
    }
}

impl Default for GuestImage {
    fn default() -> Self {
        Self::new()
    }
}
