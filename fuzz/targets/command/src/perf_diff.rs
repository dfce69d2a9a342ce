//! The length of a recording, the recording, and another one: their difference is written in each
//! format, and none of them is longer or takes more memory or time than both are worth.

use crate::entry_points;
use crate::perf_data::worth;
use crate::perf_report::BOUNDS;

pub(crate) fn run(data: &[u8]) {
    let Some((&[low, high], rest)) = data.split_first_chunk() else { return };
    let split = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (before, after) = rest.split_at(split);
    let outputs = || entry_points::compared_len(before, after).into_iter().flatten();
    BOUNDS.check(worth(before) + worth(after), outputs);
}
