//! Numbers with what they count.

use std::fmt;

/// A number with the word for one or for several: `1 fault`, `2 faults`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'a> {
    count: u64,
    one: &'a str,
    several: &'a str,
}

/// A number of things.
pub(crate) const fn counted<'a>(count: u64, one: &'a str, several: &'a str) -> Counted<'a> {
    Counted { count, one, several }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, if self.count == 1 { self.one } else { self.several })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d9_one_thing_is_not_several() {
        for (count, text) in [(0, "0 faults"), (1, "1 fault"), (2, "2 faults"), (11, "11 faults")] {
            assert_eq!(counted(count, "fault", "faults").to_string(), text);
        }
    }
}
