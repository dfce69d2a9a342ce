//! Numbers with what they count.

use std::fmt;

/// A number with the word for one or for several: `1 fault`, `2 faults`.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a, N> {
    count: N,
    one: &'a str,
    several: &'a str,
}

/// A number of things.
pub const fn counted<'a, N>(count: N, one: &'a str, several: &'a str) -> Counted<'a, N> {
    Counted { count, one, several }
}

/// A number of bytes that lie in a number of ranges.
#[must_use]
pub fn bytes_in_ranges(bytes: u64, ranges: u64) -> String {
    format!("{} in {}", counted(bytes, "byte", "bytes"), counted(ranges, "range", "ranges"))
}

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.count,
            if self.count == N::from(1) { self.one } else { self.several }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d9_one_thing_is_not_several() {
        for (count, text) in
            [(0_u64, "0 faults"), (1, "1 fault"), (2, "2 faults"), (11, "11 faults")]
        {
            assert_eq!(counted(count, "fault", "faults").to_string(), text);
        }
        assert_eq!(bytes_in_ranges(1, 1), "1 byte in 1 range");
        assert_eq!(bytes_in_ranges(2, 0), "2 bytes in 0 ranges");
    }
}
