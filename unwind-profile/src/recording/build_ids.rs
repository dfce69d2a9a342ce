//! The feature section with the build ids of files.

use std::collections::HashMap;

use unwind_perf::record::{Endian, Misc, RecordHeader};

/// Bytes of a build id at most; shorter ones are padded with zeros.
const MAX_ID: usize = 20;

/// The flag of an entry that says how long its id is.
const HAS_SIZE: u16 = 1 << 15;

/// Returns the ids in a section, by the names of files. It ends where the section does not
/// hold what it says.
///
/// ```text
///     0   record header: type, flags, bytes of the entry
///     8   process
///    12   the id, its length in the byte after it, three bytes of padding
///    36   the name, padded with zeros
/// ```
pub(super) fn parse(section: &[u8], endian: Endian) -> HashMap<Box<[u8]>, Box<[u8]>> {
    let mut ids = HashMap::new();
    let mut rest = section;
    while let Some((entry, after)) = split_entry(rest, endian) {
        rest = after;
        let Some((flags, id, name)) = parts(entry, endian) else { continue };
        let (id, size) = id.split_at_checked(MAX_ID).unwrap_or((id, &[]));
        let len = match size.first() {
            Some(&len) if flags & HAS_SIZE != 0 => usize::from(len),
            _ => MAX_ID,
        };
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let id = id.get(..len).unwrap_or(id);
        if !name.is_empty() && id.iter().any(|&byte| byte != 0) {
            ids.insert(name.into(), id.into());
        }
    }
    ids
}

/// The section that says which build ids files have, by their names. That of the kernel is known by
/// its own.
pub(crate) fn section<'a>(
    ids: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    endian: Endian,
) -> Vec<u8> {
    let mut section = Vec::new();
    for (name, id) in ids {
        let len = name.len().saturating_add(1).next_multiple_of(NAME_PADDING);
        let size = u16::try_from(len.saturating_add(ID_AT).saturating_add(ID_ROOM));
        let (Ok(size), Some(id_len)) = (size, u8::try_from(id.len()).ok()) else { continue };
        if id.len() > MAX_ID {
            continue;
        }
        let is_kernel = name.starts_with(b"[kernel");
        let mode = if is_kernel { Misc::KERNEL } else { Misc::USER };
        section.extend(endian.bytes_of_u32(0));
        section.extend(endian.bytes_of_u16(mode.0 | HAS_SIZE));
        section.extend(endian.bytes_of_u16(size));
        // All processes.
        section.extend(endian.bytes_of_u32(u32::MAX));
        let mut room = id.to_vec();
        room.resize(MAX_ID, 0);
        room.extend([id_len, 0, 0, 0]);
        section.extend(room);
        let end = section.len().saturating_add(len);
        section.extend(name);
        section.resize(end, 0);
    }
    section
}

/// Where the id is in an entry, and the bytes that it has with its length and padding.
const ID_AT: usize = 12;
const ID_ROOM: usize = 24;

/// The length to which perf pads names.
const NAME_PADDING: usize = 64;

fn split_entry(bytes: &[u8], endian: Endian) -> Option<(&[u8], &[u8])> {
    let size = bytes.get(6..).and_then(<[u8]>::first_chunk).map(|&size| endian.u16(size))?;
    let size = usize::from(size).max(RecordHeader::SIZE);
    bytes.split_at_checked(size)
}

/// The flags, the id with its length, and the name.
fn parts(entry: &[u8], endian: Endian) -> Option<(u16, &[u8], &[u8])> {
    let flags = entry.get(4..)?.first_chunk().map(|&flags| endian.u16(flags))?;
    Some((flags, entry.get(12..36)?, entry.get(36..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(flags: u16, id: &[u8], name: &[u8]) -> Vec<u8> {
        let mut id = id.to_vec();
        let len = u8::try_from(id.len()).unwrap_or(0);
        id.resize(MAX_ID, 0);
        let size = u16::try_from(name.len()).unwrap_or(0).saturating_add(36);
        let head = [&[67, 0, 0, 0][..], &flags.to_le_bytes(), &size.to_le_bytes(), &[0; 4]];
        [&head.concat()[..], &id, &[len, 0, 0, 0], name].concat()
    }

    #[test]
    fn a7_build_ids_are_as_long_as_they_say_and_a_cut_section_has_those_before_the_cut() {
        let whole = [
            entry(2, &[7; 20], b"/bin/a\0\0"),
            entry(2 | HAS_SIZE, &[9; 16], b"/bin/b\0\0"),
            entry(2, &[0; 20], b"/bin/none\0"),
        ]
        .concat();
        let ids = parse(&whole, Endian::Little);
        assert_eq!(ids.len(), 2);
        assert_eq!(ids.get(&b"/bin/a"[..]).map(|id| &**id), Some(&[7; 20][..]));
        assert_eq!(ids.get(&b"/bin/b"[..]).map(|id| &**id), Some(&[9; 16][..]));
        for len in 0..whole.len() {
            let cut = whole.get(..len).unwrap_or_default();
            let expected = usize::from(len >= 44).saturating_add(usize::from(len >= 88));
            assert_eq!(parse(cut, Endian::Little).len(), expected, "{len} bytes");
        }
    }

    #[test]
    fn k4_the_section_has_what_was_put_into_it() {
        let ids: [(&[u8], &[u8]); 3] = [
            (b"[kernel.kallsyms]", &[7; 20]),
            (b"/usr/bin/a", &[8; 16]),
            (
                b"/usr/bin/with a name of more than sixty-four bytes, as some programs have it",
                &[9; 8],
            ),
        ];
        for endian in [Endian::Little, Endian::Big] {
            let long = [(&b"/too long"[..], &[1; 21][..])];
            let section = section(ids.into_iter().chain(long), endian);
            let found = parse(&section, endian);
            assert_eq!(found.len(), 3);
            assert!(ids.iter().all(|&(name, id)| found.get(name).is_some_and(|it| **it == *id)));
        }
    }
}
