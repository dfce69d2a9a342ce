//! The number of a sample and a recording, for `unwind explain`: text and JSON in bounds of output,
//! memory and time.

use crate::entry_points;
use crate::perf_data::worth;
use crate::recording_bounds::RecordingBounds;

const BOUNDS: RecordingBounds = RecordingBounds { per_byte: 512, own_memory: 64 << 20 };

pub(crate) fn run(data: &[u8]) {
    let Some((&number, recording)) = data.split_first() else { return };
    BOUNDS.check(worth(recording), || entry_points::explain_sample(recording, number.into()));
}
