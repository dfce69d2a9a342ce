//! Functions by the time that they take, as text.

use std::cmp::Reverse;
use std::io::{self, Write};

use crate::collected::call_tree::FrameKind;
use crate::collected::view::View;

/// Writes the `top` functions that most samples were taken in, and what else samples end in.
pub(crate) fn write(out: &mut impl Write, view: &View<'_>, top: usize) -> io::Result<()> {
    let profile = view.profile;
    let all = profile.samples();
    let mut rows: Vec<_> = profile
        .frames
        .iter()
        .zip(profile.totals())
        // Samples that end in no function, as waits do, are a part of the whole; what is not shown has none.
        .filter(|(frame, total)| total.own > 0 || frame.kind != FrameKind::Note && total.all > 0)
        .collect();
    rows.sort_by_key(|(frame, total)| (Reverse((total.own, total.all)), &frame.name));
    writeln!(out, "    self   total  function")?;
    for (frame, total) in rows.iter().take(top) {
        let (own, total) = (percent(total.own, all), percent(total.all, all));
        let file = frame.place();
        writeln!(out, "{own:>6} % {total:>5} %  {}{file}", frame.name)?;
    }
    match rows.len().saturating_sub(top) {
        0 => Ok(()),
        more => {
            let hint = if view.names_options { "; see --top" } else { "" };
            writeln!(out, "{:>17}  {more} more{hint}", "")
        }
    }
}

/// A share of a hundred, to the nearest tenth, as the page in HTML has it.
#[must_use]
pub fn percent(count: u64, all: u64) -> String {
    let half = u128::from(all / 2);
    let thousand_times = u128::from(count).saturating_mul(1000).saturating_add(half);
    let tenths = thousand_times.checked_div(all.into()).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_nearest_tenths() {
        let thirds = [0, 1, 2, 3].map(|count| percent(count, 3));
        assert_eq!(thirds, ["0.0", "33.3", "66.7", "100.0"]);
        assert_eq!([percent(1, 2000), percent(999, 2_000_000)], ["0.1", "0.0"]);
        assert_eq!([percent(u64::MAX, u64::MAX), percent(7, 0)], ["100.0", "0.0"]);
    }
}
