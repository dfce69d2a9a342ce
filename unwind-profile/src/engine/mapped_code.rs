//! What the kernel says of files with code that processes map.

use unwind_perf::record::{Endian, EventFormat, Mapping, Record, RecordType};

use crate::engine::{StoredRecord, bytes_of};

/// Hands on what a record says of a file with code that a process has mapped, if it does.
pub(crate) fn with_mapped_code(
    record: &dyn StoredRecord,
    format: EventFormat,
    learn: impl FnOnce(&Mapping<'_>),
) {
    if record.header().kind != RecordType::MMAP2 {
        return;
    }
    let bytes = bytes_of(record);
    let record = Record::parse(&bytes, Endian::NATIVE);
    if let Ok(mapping) = record.and_then(|record| Mapping::decode(&record, format))
        && mapping.executable
        && mapping.name.starts_with(b"/")
    {
        learn(&mapping);
    }
}
