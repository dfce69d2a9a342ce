//! The code of functions with given names, by one look at each symbol.

use std::ops::Range;

use object::elf;

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::symbols::{Rank, for_each_of_kind, read_name};

/// A function with one of the names that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Which name it has.
    pub(crate) name: usize,
    /// Its link-time addresses.
    pub(crate) code: Range<u64>,
}

/// The functions of a file with these names, in the order of its symbols. Those of the
/// separate debug file are not looked at.
///
/// # Errors
///
/// [`ElfError`] if a table of symbols is damaged.
pub(crate) fn named<N: AsRef<[u8]>>(file: &ElfFile, names: &[N]) -> Result<Vec<Named>, ElfError> {
    let sections = file.sections()?;
    let longest = names.iter().map(|name| name.as_ref().len()).max().unwrap_or(0);
    // One byte more tells a longer name.
    let limit = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(1);
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let mut found = Vec::new();
        for_each_of_kind(
            file,
            sections,
            kind,
            |_, _| true,
            |symbol| {
                if symbol.rank == Rank::Label {
                    return;
                }
                let Some(name) = read_name(file, symbol.name, limit) else { return };
                if let Some(name) = names.iter().position(|wanted| wanted.as_ref() == name) {
                    found.push(Named { name, code: symbol.start..symbol.end });
                }
            },
        )?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}
