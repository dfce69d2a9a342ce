//! Section headers.

use object::elf::{self, SectionType};

/// A section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// If it is longer than [`NAME_LIMIT`](super::NAME_LIMIT), its start and `…`.
    pub name: Vec<u8>,
    pub(crate) kind: SectionType,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    /// For a symbol table: the index of the section with its names; for
    /// relocations: that of the symbol table.
    pub(crate) link: u32,
    /// For relocations: the index of the section that they are applied to.
    pub(super) info: u32,
    /// The size of one entry of a table in bytes.
    pub(crate) entry_size: u64,
    pub executable: bool,
    /// It has an address in a running program.
    pub allocated: bool,
    pub(super) compressed: bool,
}

/// The alignment of the made-up addresses.
const ALIGNMENT: u64 = 16;

/// Gives the loaded sections of an object addresses of their own, unless they have some: those of an object
/// that a compiler has registered are where it was loaded.
pub(super) fn place(sections: &mut [Section]) {
    if sections.iter().any(|section| section.allocated && section.addr != 0) {
        return;
    }
    let rank = |section: &Section| match (section.allocated, section.executable) {
        (false, _) => None,
        (true, true) => Some(0),
        (true, false) if section.kind != elf::SHT_NOBITS => Some(1),
        (true, false) => Some(2),
    };
    let mut next = 0_u64;
    for turn in 0..=2 {
        for section in sections.iter_mut().filter(|section| rank(section) == Some(turn)) {
            section.addr = next;
            let end = next.saturating_add(section.size);
            next = end.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        }
    }
}
