//! The file of a recording while it is written: at each moment what is in it can be read.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use unwind_perf::record::Endian;

use crate::recording::header::{Feature, FileHeader};

/// A file with its header, and the records so far.
///
/// Records wait in memory and are written together with the sections that come after them. Before
/// that the header is made to name no sections, and afterwards it says where they are: so a reader
/// of a file whose writer was killed finds the records and the sections of the last time or, while
/// they were written, the records alone.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: File,
    header: FileHeader,
    sections: Sections,
    /// Records that are not in the file yet.
    pending: Vec<u8>,
    /// Whether the file can be written in any order, so that what is in it can be read before its
    /// end is written.
    is_regular: bool,
    disk: Option<Disk>,
}

/// The most bytes of records that wait: they are written then, however short the time was.
const MAX_PENDING: usize = 16 << 20;

const ENDIAN: Endian = Endian::Little;

impl RecordFile {
    /// Begins a file with what comes before the records.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub(crate) fn begin(
        mut file: File,
        header: FileHeader,
        before_records: &[u8],
        sections: Sections,
    ) -> io::Result<Self> {
        file.write_all(&header.bytes(ENDIAN))?;
        file.write_all(before_records)?;
        let is_regular = file.metadata()?.is_file();
        let disk = if is_regular { Disk::of(&file)? } else { None };
        Ok(Self { file, header, sections, pending: Vec::new(), is_regular, disk })
    }

    /// Whether so much waits that it has to be written.
    pub(crate) fn is_full(&self) -> bool {
        self.is_regular && self.pending.len() >= MAX_PENDING
    }

    /// Makes what was written until now readable, with these sections, if the file is of a kind that
    /// can be.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub(crate) fn checkpoint(&mut self, last: &[(Feature, Vec<u8>)]) -> io::Result<()> {
        if !self.is_regular {
            return Ok(());
        }
        self.write_with(last)?;
        if let Some(disk) = &self.disk {
            disk.write_back();
        }
        Ok(())
    }

    /// Ends the file with these sections.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub(crate) fn finish(&mut self, last: &[(Feature, Vec<u8>)]) -> io::Result<()> {
        let end = self.write_with(last)?;
        // Sections of before may have been longer.
        if self.is_regular { self.file.set_len(end) } else { Ok(()) }
    }

    /// Writes the records that wait, and all sections after them. Returns where these end.
    fn write_with(&mut self, last: &[(Feature, Vec<u8>)]) -> io::Result<u64> {
        if self.header.features != [0; 4] {
            self.header.features = [0; 4];
            self.write_header()?;
        }
        let data = &mut self.header.data;
        let end = data.at.saturating_add(data.len);
        if self.is_regular {
            self.file.seek(SeekFrom::Start(end))?;
        }
        self.file.write_all(&self.pending)?;
        data.len = data.len.saturating_add(len(&self.pending));
        self.pending.clear();
        let end = data.at.saturating_add(data.len);
        let sections = self.sections.placed(last, &mut self.header, end);
        self.file.write_all(&sections)?;
        self.write_header()?;
        Ok(end.saturating_add(len(&sections)))
    }

    fn write_header(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&self.header.bytes(ENDIAN))
    }
}

impl Write for RecordFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend(bytes);
        if !self.is_regular {
            self.file.write_all(&self.pending)?;
            self.header.data.len = self.header.data.len.saturating_add(len(&self.pending));
            self.pending.clear();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// The sections after the records that are the same at all times.
#[derive(Debug, Default)]
pub(crate) struct Sections(pub(crate) Vec<(Feature, Vec<u8>)>);

impl Sections {
    /// Sets their bits and those of `last` in the header, and returns them, each with its place, for
    /// a file whose records end at `end`.
    fn placed(&self, last: &[(Feature, Vec<u8>)], header: &mut FileHeader, end: u64) -> Vec<u8> {
        // In the order of their bits, as readers look for them.
        let mut sections: Vec<_> = self.0.iter().chain(last).collect();
        sections.sort_by_key(|&(feature, _)| *feature);
        let count = u64::try_from(sections.len()).unwrap_or(0);
        let mut at = end.saturating_add(count.saturating_mul(16));
        let (mut places, mut bytes) = (Vec::new(), Vec::<u8>::new());
        for (feature, section) in sections {
            feature.set(&mut header.features);
            places
                .extend([at, len(section)].into_iter().flat_map(|word| ENDIAN.bytes_of_u64(word)));
            bytes.extend(section);
            at = at.saturating_add(len(section));
        }
        places.extend(bytes);
        places
    }
}

/// Has the system write a file to its disk, in a thread, as that takes long.
#[derive(Debug)]
struct Disk(SyncSender<()>);

impl Disk {
    fn of(file: &File) -> io::Result<Option<Self>> {
        let file = file.try_clone()?;
        let (sender, asked) = sync_channel(1);
        let write_back = move || {
            while asked.recv().is_ok() {
                // A disk that cannot is told where the file is written.
                let _ = file.sync_data();
            }
        };
        // Without a thread the system writes when it likes.
        Ok(thread::Builder::new().spawn(write_back).ok().map(|_| Self(sender)))
    }

    fn write_back(&self) {
        // If it still writes what it was asked for before, it does so once more.
        let _ = self.0.try_send(());
    }
}
