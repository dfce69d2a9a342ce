//! The feature section with what the PMU can do.

use unwind_perf::record::Endian;
use unwind_target::untrusted::plain;

/// Returns how many entries the CPU's branch record has, by a section that says so.
///
/// ```text
///     0   how many pairs
///     4   a name and a value for each: the bytes of a text, and the text, padded with
///         zeros
/// ```
pub(super) fn branches(section: &[u8], endian: Endian) -> Option<u32> {
    let (_, mut rest) = section.split_first_chunk::<4>()?;
    loop {
        let name = take_text(&mut rest, endian)?;
        let value = take_text(&mut rest, endian)?;
        if name == b"branches" {
            return plain(value)?.parse().ok();
        }
    }
}

/// Takes a text without its padding.
fn take_text<'a>(rest: &mut &'a [u8], endian: Endian) -> Option<&'a [u8]> {
    let (&len, text) = rest.split_first_chunk()?;
    let (text, after) = text.split_at_checked(usize::try_from(endian.u32(len)).ok()?)?;
    *rest = after;
    text.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(endian: Endian, texts: &[&str]) -> Vec<u8> {
        let mut bytes = endian.bytes_of_u32(u32::try_from(texts.len() / 2).unwrap()).to_vec();
        for text in texts {
            bytes.extend(endian.bytes_of_u32(16));
            let mut padded = text.as_bytes().to_vec();
            padded.resize(16, 0);
            bytes.extend(padded);
        }
        bytes
    }

    #[test]
    fn the_entries_of_the_branch_record_are_found_among_other_properties() {
        for endian in [Endian::Little, Endian::Big] {
            let whole = section(endian, &["max_precise", "3", "branches", "32"]);
            assert_eq!(branches(&whole, endian), Some(32));
            for len in 0..whole.len() {
                assert_eq!(branches(whole.get(..len).unwrap_or_default(), endian), None);
            }
            let none = section(endian, &["max_precise", "3", "branches", "many"]);
            assert_eq!(branches(&none, endian), None);
        }
    }
}
