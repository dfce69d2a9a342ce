//! What became of the rows that were added last: a file has the same few hundred again and again.

use core::hash::{Hash, Hasher};

use unwind_core::Row;

use crate::compact::rbx::Rbx;

const PLACES: usize = 128;

/// Values by rows, each at the one place that its row may have.
#[derive(Debug)]
pub(super) struct Recent<T> {
    places: [Option<(Row, Rbx, T)>; PLACES],
}

impl<T: Copy> Recent<T> {
    pub(super) const fn new() -> Self {
        Self { places: [None; PLACES] }
    }

    pub(super) fn get(&self, row: &Row, rbx: Rbx) -> Option<T> {
        let (kept, kept_rbx, value) = self.places.get(place(row, rbx)).copied().flatten()?;
        (kept == *row && kept_rbx == rbx).then_some(value)
    }

    pub(super) fn keep(&mut self, row: Row, rbx: Rbx, value: T) {
        if let Some(place) = self.places.get_mut(place(&row, rbx)) {
            *place = Some((row, rbx, value));
        }
    }
}

fn place(row: &Row, rbx: Rbx) -> usize {
    let mut mixed = Mix(0);
    (row, rbx).hash(&mut mixed);
    usize::try_from(mixed.0 >> 57).unwrap_or_default()
}

/// Multiplies what it is given into one word, of which the upper bits tell most.
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(u64::try_from(value).unwrap_or_default());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use unwind_core::{CfaRule, RegRule};

    use super::*;

    #[test]
    fn rows_are_told_apart_also_at_the_same_place() {
        let rows = (0..1000)
            .map(|at| Row::new(CfaRule::sp(8 * at), RegRule::Offset(-8), RegRule::SameValue));
        let mut recent = Recent::new();
        for (row, value) in rows.clone().zip(0..) {
            assert_eq!(recent.get(&row, Rbx::UNKNOWN), None);
            recent.keep(row, Rbx::UNKNOWN, value);
            assert_eq!(recent.get(&row, Rbx::UNKNOWN), Some(value));
            assert_eq!(recent.get(&row, Rbx::SAME_VALUE), None);
        }
        let is_kept = |row: &Row, value| recent.get(row, Rbx::UNKNOWN) == Some(value);
        let kept = rows.zip(0..).filter(|(row, value)| is_kept(row, *value)).count();
        assert!((PLACES / 2..=PLACES).contains(&kept), "{kept}");
    }
}
