//! Any bytes as a recording, cut anywhere, for `unwind report`: each format is written, and none
//! of them is longer or takes more memory or time than the recording is worth.

use crate::entry_points;
use crate::perf_data::worth;
use crate::recording_bounds::RecordingBounds;

/// Those of a difference, too.
pub(crate) const BOUNDS: RecordingBounds = RecordingBounds { per_byte: 256, own_memory: 48 << 20 };

pub(crate) fn run(data: &[u8]) {
    let outputs = || entry_points::reported_len(data).into_iter().flatten();
    BOUNDS.check(worth(data), outputs);
}
