//! Records of a perf stream, and the ring that they go to.

use core::fmt::Write as _;
use core::sync::atomic::AtomicU64;

use unwind_perf::record::{
    Attr, AttrFlags, BranchSampleType, BranchStack, CallchainDeferred, ChainBuilder, ChainLimits,
    Comm, Context, DeferredLayout, Encode, Endian, Error, EventFormat, IdPlace, Lifecycle, Lost,
    Mapping, Output, ReadFormat, Record, Records, Ring, RingWriter, Sample, SampleId, SampleType,
    UserState, WithBranches, WithCallchain,
};
use unwind_perf::ring::{MmapPage, RingReader};

use crate::{Text, seen};

unsafe extern "C" {
    /// Makes room in a ring.
    fn ring_reserve(len: usize) -> bool;
    /// Copies to a ring.
    fn ring_put(from: *const u8, len: usize);
    /// Shows what was copied.
    fn ring_commit();
}

/// A ring of the host's.
#[derive(Debug)]
pub struct HostRing;

impl Output for HostRing {
    fn put(&mut self, bytes: &[u8]) {
        // SAFETY: the bytes are as many as is said.
        unsafe { ring_put(bytes.as_ptr(), bytes.len()) }
    }
}

impl Ring for HostRing {
    fn reserve(&mut self, len: usize) -> bool {
        // SAFETY: promised by the function that links this.
        unsafe { ring_reserve(len) }
    }

    fn commit(&mut self) {
        // SAFETY: as above.
        unsafe { ring_commit() }
    }
}

fn tell<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        let _ = write!(Text(0), "{error}");
    }
}

/// Everything that a stream can be decoded as.
#[unsafe(no_mangle)]
pub fn records(
    bytes: &[u8; 4096],
    len: usize,
    big: bool,
    fields: (u64, u64, u64, u64),
    writer: &mut RingWriter<HostRing>,
) {
    let bytes = bytes.get(..len).unwrap_or_default();
    let endian = if big { Endian::Big } else { Endian::Little };
    let format = EventFormat {
        sample_type: SampleType::from_bits_retain(fields.0),
        read_format: ReadFormat::from_bits_retain(fields.1),
        flags: AttrFlags::from_bits_retain(fields.2),
        branch_sample_type: BranchSampleType::from_bits_retain(fields.3),
    };
    match Attr::parse(bytes, endian) {
        Ok(attr) => tell(UserState::place_of_stack(bytes, endian, &attr)),
        Err(error) => tell::<()>(Err(error)),
    }
    let layout = DeferredLayout::of([format.flags]);
    let place = IdPlace::of([format, EventFormat::default()]);
    let mut records = Records::new(bytes, endian);
    loop {
        let record = match records.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => return tell::<()>(Err(error)),
        };
        sample(&record, format, writer);
        match CallchainDeferred::decode(&record, format, layout) {
            Ok(stack) => {
                let now = SampleId::default();
                if let Err(error) = writer.write(&stack, format, fields.0, now) {
                    let _ = write!(Text(0), "{error}");
                }
            }
            Err(error) => tell::<()>(Err(error)),
        }
        tell(Comm::decode(&record, format));
        tell(Lifecycle::decode(&record, format));
        tell(Lost::decode(&record, format));
        match Mapping::decode(&record, format) {
            Ok(mapping) => {
                let again = Mapping::of_code(mapping.task, mapping.addr..mapping.len, mapping.name);
                seen(writer.write(&again, format, fields.0, mapping.sample_id));
                seen(writer.write(&mapping, format, fields.0, mapping.sample_id));
            }
            Err(error) => tell::<()>(Err(error)),
        }
        tell(SampleId::decode(&record, format));
        seen((place.map(|place| place.id_of(&record)), records.offset()));
    }
    seen(writer.lost());
}

fn sample(record: &Record<'_>, format: EventFormat, writer: &mut RingWriter<HostRing>) {
    let sample = match Sample::decode(record, format) {
        Ok(sample) => sample,
        Err(error) => return tell::<()>(Err(error)),
    };
    seen((sample.fields(), sample.encoded_len(format)));
    match BranchStack::decode(record, format) {
        Ok(Some(branches)) => {
            for branch in branches.entries() {
                let flags = branch.flags;
                seen((flags.cycles(), flags.kind(), flags.new_kind(), flags.speculation()));
                seen((flags.privilege(), flags.is_predicted(), flags.is_mispredicted()));
                seen((flags.is_abort(), flags.is_in_transaction(), branch));
            }
            let (hw_index, branches) = (branches.hw_index, branches.entries());
            let again = WithBranches { sample, hw_index, branches };
            seen(writer.write(&again, format, 0, SampleId::default()));
        }
        Ok(None) => {}
        Err(error) => tell::<()>(Err(error)),
    }
    if let Some(chain) = sample.callchain {
        seen((chain.user_part(), chain.without_cookie().get(3)));
        for entry in chain.entries() {
            seen(entry);
        }
        let chain = chain.words();
        if let Ok(rechained) = WithCallchain::new(record, format, chain) {
            seen(writer.write(&rechained, format, 0, SampleId::default()));
        }
    }
}

/// What is in a ring, whatever that is.
#[unsafe(no_mangle)]
pub fn ring_read(
    page: &[AtomicU64; MmapPage::WORDS],
    data: &[AtomicU64; 64],
    out: &mut [u8; 64],
    from: usize,
) {
    let Ok(page) = MmapPage::new(page) else { return };
    let Ok(mut ring) = RingReader::new(page, data) else { return };
    let taken = ring.take(|record| {
        record.copy(from, out);
        record.header()
    });
    seen((taken, ring.next(out).is_ok(), ring.waiting()));
}

/// A chain of a sample that is being taken.
#[unsafe(no_mangle)]
pub fn chain(words: &mut [u64; 128], len: usize, limits: (usize, usize), ip: u64) -> usize {
    let words = words.get_mut(..len).unwrap_or_default();
    let limits = ChainLimits { max_stack: limits.0, max_contexts: limits.1 };
    let mut chain = ChainBuilder::new(words, limits);
    seen(chain.context(Context::Kernel));
    for ip in 0..ip {
        seen(chain.ip(ip));
    }
    seen((chain.can_defer(), chain.defer(ip), chain.dropped()));
    chain.words().len()
}
