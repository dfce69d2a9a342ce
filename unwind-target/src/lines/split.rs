//! DWARF that a compiler has put apart from the program (split DWARF, DWARF 5 section 7.3.2): in
//! a `.dwo` file for each unit, or in a package of all (`.dwp`) beside the program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, DwarfPackageSections, EndianSlice, SectionId};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::elf::section::Section;
use crate::files::regular_file;
use crate::lines::sections::{Bytes, Kept, bytes_of, endian};

/// Finds what is apart from a program.
pub(super) struct SplitDwarf<'k> {
    /// The program, if it has a name.
    program: Option<PathBuf>,
    package: Option<DwarfPackage<Bytes<'k>>>,
    kept: &'k Kept,
}

impl<'k> SplitDwarf<'k> {
    /// That of a program at this path, whose package is beside it.
    pub(super) fn of(program: Option<PathBuf>, kept: &'k Kept) -> Self {
        let beside = program.as_ref().map(|program| {
            let mut name = program.clone().into_os_string();
            name.push(".dwp");
            PathBuf::from(name)
        });
        let package = beside.and_then(|path| {
            let file = open(&path)?;
            let sections = sections(&file)?;
            let endian = endian(&file);
            let bytes = |id: SectionId| {
                kept.keep(bytes_of(&file, sections, id.dwo_name()).unwrap_or_default())
            };
            let package = DwarfPackageSections::load(|id| Ok::<_, gimli::Error>(bytes(id)));
            package
                .ok()?
                .borrow(|section| EndianSlice::new(section, endian), EndianSlice::new(&[], endian))
                .ok()
        });
        Self { program, package, kept }
    }

    /// The result of a lookup, with what is apart.
    pub(super) fn complete<L: LookupContinuation<Buf = Bytes<'k>>>(
        &self,
        mut lookup: LookupResult<L>,
    ) -> L::Output {
        loop {
            lookup = match lookup {
                LookupResult::Output(output) => return output,
                LookupResult::Load { load, continuation } => continuation.resume(self.find(&load)),
            }
        }
    }

    /// The DWARF of a unit that says where it is.
    fn find(&self, load: &SplitDwarfLoad<Bytes<'k>>) -> Option<Arc<Dwarf<Bytes<'k>>>> {
        let packed = self
            .package
            .as_ref()
            .and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok().flatten());
        packed.map(Arc::new).or_else(|| {
            let path = load.path.as_ref().map(|path| Path::new(OsStr::from_bytes(path.slice())))?;
            let directory = load.comp_dir.as_ref().map(|path| OsStr::from_bytes(path.slice()));
            let made = directory.map_or_else(|| path.to_owned(), |made| Path::new(made).join(path));
            // Where the compiler wrote it, or beside the program.
            let beside = self.program.as_ref().and_then(|program| program.parent());
            let beside = beside.zip(path.file_name()).map(|(beside, name)| beside.join(name));
            std::iter::once(made).chain(beside).find_map(|path| unit(&path, load, self.kept))
        })
    }
}

/// The DWARF of a file, if it is that of the unit.
fn unit<'k>(
    path: &Path,
    load: &SplitDwarfLoad<Bytes<'k>>,
    kept: &'k Kept,
) -> Option<Arc<Dwarf<Bytes<'k>>>> {
    let file = open(path)?;
    let sections = sections(&file)?;
    let endian = endian(&file);
    let dwarf = Dwarf::load(|id| {
        let bytes = bytes_of(&file, sections, id.dwo_name())?;
        Ok::<_, ElfError>(EndianSlice::new(kept.keep(bytes), endian))
    });
    let mut dwarf = dwarf.ok()?;
    let header = dwarf.units().next().ok().flatten()?;
    if dwarf.unit(header).ok()?.dwo_id != Some(load.dwo_id) {
        return None;
    }
    dwarf.make_dwo(&load.parent);
    Some(Arc::new(dwarf))
}

fn open(path: &Path) -> Option<ElfFile> {
    // The maker of the program chooses the name.
    ElfFile::from_file(regular_file::open(path).ok()?).ok()
}

fn sections(file: &ElfFile) -> Option<&[Section]> {
    file.sections().ok()
}
