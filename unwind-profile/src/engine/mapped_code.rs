//! What the kernel says of files with code that processes map.

use unwind_perf::record::{Endian, EventFormat, Mapping, Record, RecordType};

use crate::engine::StoredRecord;

/// Hands on what a record says of a file with code that a process has mapped, if it does.
pub(crate) fn with_mapped_code(
    record: &dyn StoredRecord,
    format: EventFormat,
    learn: impl FnOnce(&Mapping<'_>),
) {
    if record.header().kind != RecordType::MMAP2 {
        return;
    }
    let mut bytes = vec![0; record.header().size.into()];
    record.copy(0, &mut bytes);
    let record = Record::parse(&bytes, Endian::NATIVE);
    if let Ok(mapping) = record.and_then(|record| Mapping::decode(&record, format))
        && mapping.executable
        && mapping.name.starts_with(b"/")
    {
        learn(&mapping);
    }
}
