//! What several files of DWARF have in common, which `dwz` puts into one more file: that is named
//! in the section `.gnu_debugaltlink`, by its path and its build id.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gimli::{Dwarf, EndianSlice};
use memchr::memchr;

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::files::regular_file;
use crate::lines::sections::{Bytes, Kept, bytes_of, endian};

/// Where files are by their build ids.
const BY_ID: &str = "/usr/lib/debug/.build-id";

/// How long a note of a build id is without the id: three words and the name `GNU`.
const NOTE_HEADER: usize = 16;

/// What the DWARF of a file shares with others, if there is such a file. `path` is that of the
/// first file.
pub(super) fn find<'k>(
    link: &[u8],
    path: Option<&Path>,
    kept: &'k Kept,
) -> Option<Dwarf<Bytes<'k>>> {
    let end = memchr(0, link)?;
    let (name, id) = (link.get(..end)?, link.get(end.checked_add(1)?..)?);
    let beside = path.and_then(Path::parent).unwrap_or_else(|| Path::new("/"));
    // A path that begins at the root replaces the rest.
    let named = beside.join(OsStr::from_bytes(name));
    std::iter::once(named).chain(by_id(id)).find_map(|path| read(&path, id, kept))
}

/// The place of the file with this build id.
fn by_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut name = format!("{first:02x}/");
    for byte in rest {
        let _ = write!(name, "{byte:02x}");
    }
    name.push_str(".debug");
    Some(Path::new(BY_ID).join(name))
}

/// The DWARF of a file, if it has this build id.
fn read<'k>(path: &Path, id: &[u8], kept: &'k Kept) -> Option<Dwarf<Bytes<'k>>> {
    // The maker of the first file chooses the name.
    let file = ElfFile::from_file(regular_file::open(path).ok()?).ok()?;
    let sections = file.sections().ok()?;
    // Such a file has no segments.
    let note = bytes_of(&file, sections, Some(".note.gnu.build-id")).ok()?;
    if note.get(NOTE_HEADER..) != Some(id) || id.is_empty() {
        return None;
    }
    let dwarf = Dwarf::load(|section| {
        let bytes = bytes_of(&file, sections, Some(section.name()))?;
        Ok::<_, ElfError>(EndianSlice::new(kept.keep(bytes), endian(&file)))
    });
    dwarf.ok()
}
