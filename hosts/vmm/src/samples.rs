//! What samples and stacks are written into.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use unwind_perf::record::{
    AttrFlags, BranchSampleType, Encode, EventFormat, ReadFormat, SampleId, SampleType, Task,
};
use unwind_perf::ring::{CpuRing, Direction, MmapPage, RingReader};

/// What the records of the one event have.
pub(crate) const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::PERIOD)
        .union(SampleType::CALLCHAIN),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::SAMPLE_ID_ALL
        .union(AttrFlags::MMAP)
        .union(AttrFlags::COMM)
        .union(AttrFlags::DEFER_CALLCHAIN)
        .union(AttrFlags::DEFER_OUTPUT),
    branch_sample_type: BranchSampleType::empty(),
};

/// How many words a ring has.
const WORDS: usize = 1 << 19;

/// Records of one thread, also those that a signal's handler writes on top of it.
#[derive(Debug)]
pub(crate) struct Ring {
    ring: CpuRing<'static>,
    page: MmapPage<'static>,
    data: &'static [AtomicU64],
}

impl Ring {
    /// An empty one, which is never freed: handlers of signals write to it.
    pub(crate) fn new() -> Self {
        let words = |count| -> &'static [AtomicU64] {
            Box::leak((0..count).map(|_| AtomicU64::new(0)).collect())
        };
        let page = MmapPage::new(words(MmapPage::WORDS)).expect("long enough");
        let data = words(WORDS);
        let ring = CpuRing::new(page, data, Direction::Forward, 1).expect("a power of two");
        Self { ring, page, data }
    }

    /// Writes a record. One that has no room is counted.
    pub(crate) fn write(&self, record: &impl Encode, of: Task) {
        // The count is told by a record of its own once there is room.
        let _ = self.ring.write(record, FORMAT, 0, now(of));
    }

    pub(crate) fn lost(&self) -> u64 {
        self.ring.lost()
    }

    pub(crate) fn reader(&self) -> RingReader<'static> {
        RingReader::new(self.page, self.data).expect("a power of two")
    }
}

/// Who and when.
pub(crate) fn now(task: Task) -> SampleId {
    static START: OnceLock<Instant> = OnceLock::new();
    let time = START.get_or_init(Instant::now).elapsed().as_nanos() as u64;
    SampleId { task: Some(task), time: Some(time + 1), ..SampleId::default() }
}
