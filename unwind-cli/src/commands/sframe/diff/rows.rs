//! How what two tables say of one function differs.

use serde::Serialize;
use unwind_target::counted::counted;

use crate::commands::sframe::diff::side::Said;

#[derive(Serialize)]
pub(super) struct RowChange {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) old: Option<String>,
    pub(super) new: Option<String>,
}

/// What the entries of a function say otherwise.
pub(super) fn entries(old: &Said, new: &Said) -> String {
    let text = |said: &Said| match &said.kind {
        Err(error) => error.clone(),
        &Ok((abi, is_signal, block, key)) => {
            let mut text = format!("{abi:?}");
            if is_signal {
                text.push_str(", signal frame");
            }
            if block != 0 {
                text.push_str(&format!(", blocks of {}", counted(block, "byte", "bytes")));
            }
            if key == Some(sframe::PauthKey::B) {
                text.push_str(", key B");
            }
            text
        }
    };
    format!("{}, now {}", text(old), text(new))
}

/// The stretches of a function for which its two forms do not say the same.
pub(super) fn row_changes(old: &Said, new: &Said) -> Vec<RowChange> {
    let ends = [old.end(), new.end()];
    let starts = old.rows.iter().chain(&new.rows).map(|&(start, _)| start);
    let mut places: Vec<_> = starts.chain(ends).chain([0]).collect();
    places.sort_unstable();
    places.dedup();
    let mut changes = Vec::new();
    for (&start, &end) in places.iter().zip(places.iter().skip(1)) {
        let [old_row, new_row] = [old, new].map(|said| said.at(start));
        if old_row != new_row {
            let old = old_row.map(|row| old.text(row));
            let new = new_row.map(|row| new.text(row));
            changes.push(RowChange { start, end, old, new });
        }
    }
    changes
}
