//! Entries of `.eh_frame`, to make a search table of them and to cut them out.

use std::ops::Range;

/// A CIE or FDE as it lies in the section.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is in the section, its length field included.
    pub range: Range<usize>,
    /// Of an FDE: where its CIE is.
    pub cie: Option<usize>,
    /// Of an FDE: its code, as linked.
    pub code: Range<u64>,
}

/// How compilers for x86-64 write the start of an FDE's code: a 32-bit offset
/// from the field itself.
const PCREL_SDATA4: u8 = 0x1b;

/// The entries of a section that is linked at `addr`.
///
/// # Panics
///
/// If an entry is not of the form that compilers for x86-64 write.
#[must_use]
pub fn entries(bytes: &[u8], addr: u64) -> Vec<Entry> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut entries = Vec::new();
    let mut at = 0;
    while at + 4 <= bytes.len() {
        let len = usize::try_from(word(at)).unwrap();
        let range = at..at + 4 + len;
        if len == 0 {
            // A linker's mark for the end, which may stand between two parts.
            at += 4;
            continue;
        }
        assert!(len != 0xffff_ffff, "no compiler writes 64-bit entries");
        let back = usize::try_from(word(at + 4)).unwrap();
        let (cie, code) = if back == 0 {
            (None, 0..0)
        } else {
            let offset = i64::from(word(at + 8).cast_signed());
            let place = addr.wrapping_add(u64::try_from(at).unwrap() + 8);
            let start = place.wrapping_add_signed(offset);
            (Some(at + 4 - back), start..start + u64::from(word(at + 12)))
        };
        at = range.end;
        entries.push(Entry { range, cie, code });
    }
    for entry in &entries {
        let Some(cie) = entry.cie else { continue };
        assert_eq!(encoding(bytes, cie), PCREL_SDATA4, "as compilers for x86-64 write it");
    }
    entries
}

/// The encoding of pointers to code that the CIE at `at` asks for.
fn encoding(bytes: &[u8], at: usize) -> u8 {
    let augmentation = &bytes[at + 9..];
    let len = augmentation.iter().position(|&byte| byte == 0).unwrap();
    let (augmentation, mut rest) = augmentation.split_at(len);
    rest = &rest[1..];
    // Code and data alignment, the column of the return address, and the size
    // of what follows.
    for _ in 0..4 {
        let end = rest.iter().position(|&byte| byte & 0x80 == 0).unwrap();
        rest = &rest[end + 1..];
    }
    let mut at = 0;
    for &letter in &augmentation[1..] {
        match letter {
            b'R' => return rest[at],
            b'L' => at += 1,
            // An encoding and a pointer of four bytes.
            b'P' => at += 5,
            _ => {}
        }
    }
    0
}

/// A search table, the form of `.eh_frame_hdr`, linked at `addr`, over a
/// section that is linked at `eh_frame`.
#[must_use]
pub fn header(entries: &[Entry], eh_frame: u64, addr: u64) -> Vec<u8> {
    let relative = |target: u64, base: u64| {
        let offset = target.wrapping_sub(base).cast_signed();
        i32::try_from(offset).expect("images are smaller than 2 GB").to_le_bytes()
    };
    let mut fdes: Vec<_> = entries.iter().filter(|entry| entry.cie.is_some()).collect();
    fdes.sort_by_key(|fde| fde.code.start);
    // Version; the encodings of the pointer, the count and the table.
    let mut bytes = vec![1, PCREL_SDATA4, 0x03, 0x3b];
    bytes.extend(relative(eh_frame, addr + 4));
    bytes.extend(u32::try_from(fdes.len()).unwrap().to_le_bytes());
    for fde in fdes {
        bytes.extend(relative(fde.code.start, addr));
        let at = eh_frame + u64::try_from(fde.range.start).unwrap();
        bytes.extend(relative(at, addr));
    }
    bytes
}

/// The FDEs for which `keep` says so and their CIEs, for the same address: the
/// offsets in them are changed to go with their places.
#[must_use]
pub fn cut(bytes: &[u8], entries: &[Entry], mut keep: impl FnMut(&Entry) -> bool) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut cies: Vec<(usize, usize)> = Vec::new();
    for entry in entries {
        let Some(cie) = entry.cie else { continue };
        if !keep(entry) {
            continue;
        }
        let cie = match cies.iter().find(|(old, _)| *old == cie) {
            Some(&(_, at)) => at,
            None => {
                let range = entries.iter().find(|entry| entry.range.start == cie).unwrap();
                let at = kept.len();
                kept.extend(&bytes[range.range.clone()]);
                cies.push((cie, at));
                at
            }
        };
        let at = kept.len();
        kept.extend(&bytes[entry.range.clone()]);
        let back = u32::try_from(at + 4 - cie).unwrap();
        kept[at + 4..at + 8].copy_from_slice(&back.to_le_bytes());
        let start = i32::from_le_bytes(kept[at + 8..at + 12].try_into().unwrap());
        let moved = i64::try_from(entry.range.start).unwrap() - i64::try_from(at).unwrap();
        let start = i32::try_from(i64::from(start) + moved).unwrap();
        kept[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
    }
    kept.extend([0; 4]);
    kept
}
