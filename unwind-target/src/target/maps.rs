//! What is mapped where: `/proc/PID/maps`, or the same from a core file.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use memchr::{memchr, memmem};

use crate::untrusted::plain;

/// One range of the target's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Half-open.
    pub range: Range<u64>,
    pub executable: bool,
    /// What may be done with its bytes, where that is known: not from a core file.
    pub access: Option<Access>,
    /// Where in the backing file the range starts, in bytes.
    pub offset: u64,
    pub backing: Backing,
}

impl Mapping {
    /// Whether it is of a file that has a name.
    pub(crate) fn is_file(&self) -> bool {
        matches!(&self.backing, Backing::File(file) if !file.is_memory())
    }

    /// Whether it is memory of the program's own, whatever the kernel calls that.
    pub(crate) fn is_memory(&self) -> bool {
        match &self.backing {
            Backing::Anonymous => true,
            Backing::File(file) => file.is_memory(),
            Backing::Named(name) => name.starts_with(b"[anon"),
            Backing::Vdso => false,
        }
    }
}

/// What a program may do with the bytes of a mapping, besides executing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: a guard, or addresses that are kept free.
    Nothing,
    /// Read them.
    ReadOnly,
    /// Change them.
    Writable,
}

/// What backs a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Memory without a name.
    Anonymous,
    /// A file of the file system.
    File(MappedFile),
    /// The code that the kernel lends to every process.
    Vdso,
    /// Another range with a name that is not a path: `[stack]`, `[heap]`,
    /// `anon_inode:[perf_event]`.
    Named(Vec<u8>),
}

/// A file as a mapping names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    pub path: PathBuf,
    /// Device and inode number, where they are known: not from a core file.
    pub id: Option<FileId>,
    /// The path no longer leads to the file.
    pub deleted: bool,
}

impl MappedFile {
    /// From the name that the kernel writes, which marks deleted files by its
    /// end.
    pub fn new(mut name: Vec<u8>, id: Option<FileId>) -> Self {
        let len = name.strip_suffix(b" (deleted)").map(<[u8]>::len);
        name.truncate(len.unwrap_or(name.len()));
        Self { path: PathBuf::from(OsString::from_vec(name)), id, deleted: len.is_some() }
    }

    /// Whether it is no file of a file system, but what the kernel has shared memory and
    /// huge pages in.
    fn is_memory(&self) -> bool {
        self.deleted && is_name_of_memory(self.path.as_os_str().as_bytes())
    }
}

/// Whether the kernel calls memory so that is no file of a file system: huge pages, and shared
/// memory without a name.
#[must_use]
pub fn is_name_of_memory(name: &[u8]) -> bool {
    [&b"/anon_hugepage"[..], b"/dev/zero", b"/SYSV"].iter().any(|start| name.starts_with(start))
}

/// What identifies a file whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

/// Reads the text of `/proc/PID/maps`. A line that is not of its form is left
/// out: the kernel writes none.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, tail) = split_at_byte(rest, b'\n').unwrap_or((rest, &[]));
        mappings.extend(parse_line(line));
        rest = tail;
    }
    mappings
}

/// `55d0c0a00000-55d0c0a02000 r-xp 00001000 08:01 1234   /usr/bin/cat`.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = split_at_byte(line, b'-')?;
    let (end, rest) = split_at_byte(rest, b' ')?;
    let (permissions, rest) = split_at_byte(rest, b' ')?;
    let (offset, rest) = split_at_byte(rest, b' ')?;
    let (device, rest) = split_at_byte(rest, b' ')?;
    let (inode, name) = split_at_byte(rest, b' ').unwrap_or((rest, &[]));
    let (major, minor) = split_at_byte(device, b':')?;
    let id = FileId {
        major: u32::try_from(hex(major)?).ok()?,
        minor: u32::try_from(hex(minor)?).ok()?,
        inode: plain(inode)?.parse().ok()?,
    };
    let start_of_name = name.iter().position(|&byte| byte != b' ').unwrap_or(name.len());
    Some(Mapping {
        range: hex(start)?..hex(end)?,
        executable: permissions.get(2) == Some(&b'x'),
        access: Some(match permissions {
            [_, b'w', ..] => Access::Writable,
            [b'r', ..] => Access::ReadOnly,
            _ => Access::Nothing,
        }),
        offset: hex(offset)?,
        backing: backing(name.get(start_of_name..)?, id),
    })
}

fn backing(name: &[u8], id: FileId) -> Backing {
    match name {
        [] => Backing::Anonymous,
        b"[vdso]" => Backing::Vdso,
        [b'/', ..] => Backing::File(MappedFile::new(unescape_newlines(name), Some(id))),
        _ => Backing::Named(name.to_vec()),
    }
}

/// A newline in a path, which would end the line, is written `\012`; nothing
/// else is escaped.
fn unescape_newlines(path: &[u8]) -> Vec<u8> {
    const ESCAPED: &[u8] = br"\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, escape)) =
        memmem::find(rest, ESCAPED).and_then(|at| rest.split_at_checked(at))
    {
        plain.extend_from_slice(before);
        plain.push(b'\n');
        rest = escape.strip_prefix(ESCAPED).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    plain
}

fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let (before, from) = text.split_at_checked(memchr(byte, text)?)?;
    Some((before, from.get(1..)?))
}

/// The number that 1 to 16 digits of base 16 say, as the kernel writes them: without capitals.
#[must_use]
pub fn hex(digits: &[u8]) -> Option<u64> {
    let fits = (1..=16).contains(&digits.len());
    let digit = |number: Option<u64>, &byte: &u8| {
        let digit = match byte {
            b'0'..=b'9' => byte.wrapping_sub(b'0'),
            b'a'..=b'f' => byte.wrapping_sub(b'a').wrapping_add(10),
            _ => return None,
        };
        number.map(|number| number << 4 | u64::from(digit))
    };
    fits.then(|| digits.iter().fold(Some(0), digit))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &[u8]) -> Mapping {
        let [mapping] = <[Mapping; 1]>::try_from(parse(line)).unwrap();
        mapping
    }

    #[test]
    fn a_file_mapping_has_its_range_permissions_offset_and_identity() {
        let line = b"7f0000001000-7f0000003000 r-xp 00028000 fd:10 4097   /usr/lib/libc.so.6\n";
        assert_eq!(
            one(line),
            Mapping {
                range: 0x7f00_0000_1000..0x7f00_0000_3000,
                executable: true,
                access: Some(Access::ReadOnly),
                offset: 0x28000,
                backing: Backing::File(MappedFile {
                    path: "/usr/lib/libc.so.6".into(),
                    id: Some(FileId { major: 0xfd, minor: 0x10, inode: 4097 }),
                    deleted: false,
                }),
            }
        );
    }

    #[test]
    fn what_may_be_done_with_a_mapping_is_told_by_its_first_letters() {
        for (line, access) in [
            (&b"1000-2000 ---p 00000000 00:00 0"[..], Access::Nothing),
            (b"1000-2000 --xp 00000000 00:00 0", Access::Nothing),
            (b"1000-2000 r-xp 00000000 00:00 0", Access::ReadOnly),
            (b"1000-2000 rw-p 00000000 00:00 0", Access::Writable),
            (b"1000-2000 -w-s 00000000 00:00 0", Access::Writable),
        ] {
            assert_eq!(one(line).access, Some(access));
        }
    }

    #[test]
    fn a_deleted_file_is_marked_and_its_path_has_no_suffix() {
        let Backing::File(file) = one(b"1000-2000 r--p 0 00:01 7 /tmp/a b (deleted)\n").backing
        else {
            panic!("not a file");
        };
        assert!(file.deleted);
        assert_eq!(file.path, PathBuf::from("/tmp/a b"));
    }

    #[test]
    fn a_path_is_bytes_and_may_hold_spaces_and_newlines() {
        let Backing::File(file) = one(b"1000-2000 r--p 0 00:01 7   /t/\xff x\\012y\\x").backing
        else {
            panic!("not a file");
        };
        assert_eq!(file.path.as_os_str().as_bytes(), b"/t/\xff x\ny\\x");
    }

    #[test]
    fn ranges_that_are_no_files_are_told_apart() {
        for (line, backing) in [
            (&b"1000-2000 rw-p 00000000 00:00 0 "[..], Backing::Anonymous),
            (b"1000-2000 rw-p 00000000 00:00 0", Backing::Anonymous),
            (b"1000-2000 r-xp 00000000 00:00 0    [vdso]", Backing::Vdso),
            (b"1000-2000 rw-p 00000000 00:00 0    [stack]", Backing::Named(b"[stack]".to_vec())),
            (
                b"1000-2000 rw-s 00000000 00:0e 9  anon_inode:[perf_event]",
                Backing::Named(b"anon_inode:[perf_event]".to_vec()),
            ),
        ] {
            assert_eq!(one(line).backing, backing);
        }
    }

    #[test]
    fn the_last_line_needs_no_newline_and_a_cut_line_is_left_out() {
        let text = b"1000-2000 r--p 0 00:01 7 /a\n2000-3000 r-xp 1000 00:01 7 /a\n3000-40";
        assert_eq!(parse(text).len(), 2);
        for len in 0..text.len() {
            assert!(parse(&text[..len]).len() <= 2);
        }
    }
}
