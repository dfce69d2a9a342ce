//! Reading a `perf.data`, record by record, in either form.

mod sections;

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use unwind_perf::record::{Attr, Endian, Record, RecordHeader, RecordType};
use unwind_target::Untrusted;

use crate::recording::decompress::Decompressor;
use crate::recording::error::{Fault, PerfError};
use crate::recording::event_desc::Descriptions;
use crate::recording::events::Events;
use crate::recording::header::{Feature, FileHeader, Section, Start, text_of_section};
use crate::recording::input::Input;
use crate::recording::pmu_caps;
use crate::recording::record_bytes::RecordBytes;
use crate::recording::stream::StreamReader;
use crate::recording::tool_record;

/// Standard input by name.
const STDIN: &str = "/dev/stdin";

/// What is told how far the reading of a recording is.
pub trait ReadProgress: fmt::Debug + Send + Sync {
    /// The reading of a file of `len` bytes begins.
    fn begin(&self, path: &Path, len: u64);

    /// `done` of its `len` bytes are read.
    fn done(&self, done: u64, len: u64);

    /// It is at its end.
    fn end(&self);
}

/// A `perf.data` that is read from the front to the back.
pub struct PerfReader {
    input: Input,
    start: Start,
    header: Option<FileHeader>,
    events: Events,
    /// Where the next record starts, and where the records end if that is
    /// known.
    at: u64,
    end: Option<u64>,
    /// The record that was read last.
    record: RecordBytes,
    /// Bytes after it that belong to it.
    payload: u64,
    /// Records that are stored compressed, from the first one on.
    decompressor: Option<Decompressor>,
    /// What a record of pipe form has said of [`branch_entries`](Self::branch_entries).
    told_branch_entries: Option<u32>,
    /// What a record of pipe form has said of the kernel's release.
    told_release: Option<Untrusted>,
    progress: Option<Arc<dyn ReadProgress>>,
    /// Where the progress was shown last.
    shown_at: u64,
}

impl fmt::Debug for PerfReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerfReader")
            .field("at", &self.at)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl PerfReader {
    /// Opens a file, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Self, PerfError> {
        // Standard input can be a file too, which is read in any order.
        let file = File::open(if path == Path::new("-") { Path::new(STDIN) } else { path })?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            Err(PerfError::Directory)
        } else if metadata.is_file() {
            Self::new(Input::File(BufReader::with_capacity(1 << 16, file), metadata.len()))
        } else {
            Self::new(Input::Pipe(Box::new(BufReader::new(file))))
        }
    }

    /// Reads pipe form from another thread. Records that are kept share its bytes.
    pub fn from_stream(stream: StreamReader) -> Result<Self, PerfError> {
        Self::new(Input::Stream(stream))
    }

    /// Reads a recording of either form that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, PerfError> {
        Self::new(Input::Bytes(Cursor::new(bytes)))
    }

    fn new(mut input: Input) -> Result<Self, PerfError> {
        let mut start = [0; Start::LEN];
        fill(&mut input, &mut start)?.then_some(()).ok_or(PerfError::NotPerfData)?;
        let start = Start::parse(start).ok_or(PerfError::NotPerfData)?;
        let reader = Self {
            input,
            start,
            header: None,
            events: Events::default(),
            at: Start::PIPE,
            end: None,
            record: RecordBytes::default(),
            payload: 0,
            decompressor: None,
            told_branch_entries: None,
            told_release: None,
            progress: None,
            shown_at: 0,
        };
        match start.size {
            Start::PIPE => Ok(reader),
            FileHeader::LEN => reader.read_header(),
            size => Err(PerfError::UnknownHeader(size)),
        }
    }

    pub(crate) fn endian(&self) -> Endian {
        self.start.endian
    }

    /// Tells from now on how far the reading of the file at `path` is.
    pub fn tell_progress_to(&mut self, progress: Arc<dyn ReadProgress>, path: &Path) {
        if let Ok(len) = self.file_len() {
            progress.begin(path, len);
            self.progress = Some(progress);
        }
    }

    /// Says how far the reading is, now and then.
    fn tell_progress(&mut self) {
        const STRIDE: u64 = 1 << 20;
        if let (Some(progress), Some(end)) = (&self.progress, self.end)
            && self.at.saturating_sub(self.shown_at) >= STRIDE
        {
            self.shown_at = self.at;
            progress.done(self.at, end);
        }
    }

    /// Ends the progress, since the reading is at its end.
    fn finish_progress(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.end();
        }
    }

    /// The header of the file form.
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_ref()
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Whose record was read last, if it is the kernel's.
    ///
    /// # Errors
    ///
    /// As [`Events::event_of`].
    pub(crate) fn event_of_record(&self) -> Result<Result<usize, Fault>, PerfError> {
        match Record::parse(&self.record, self.start.endian) {
            Ok(record) => self.events.event_of(&record),
            Err(error) => Ok(Err(error.into())),
        }
    }

    /// Whether the recorder left the length of the data open.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.header.is_some_and(|header| header.data.len == 0)
    }

    /// Where the record that was read last starts.
    pub(crate) fn record_at(&self) -> u64 {
        let len = u64::try_from(self.record.len()).unwrap_or(u64::MAX);
        self.at.saturating_sub(len)
    }

    /// Reads the next record. Returns whether there is one.
    ///
    /// # Errors
    ///
    /// [`PerfError`] where the file ends inside a record or its size cannot
    /// be. There is nothing to read after that.
    pub(crate) fn read(&mut self) -> Result<bool, PerfError> {
        let read = self.read_record();
        match read {
            Ok(true) => self.tell_progress(),
            _ => self.finish_progress(),
        }
        read
    }

    fn read_record(&mut self) -> Result<bool, PerfError> {
        self.skip_payload()?;
        loop {
            if self.take_decompressed()? {
                return Ok(true);
            }
            let Some(kind) = self.read_stored()? else {
                return self.end_decompression();
            };
            if tool_record::COMPRESSED.contains(&kind) {
                let body = self.record.get(RecordHeader::SIZE..).unwrap_or_default();
                let piece = compressed_bytes(kind, body, self.start.endian);
                self.decompressor.get_or_insert_with(Decompressor::new).add(piece);
                continue;
            }
            let holds_back = self.decompressor.as_ref().is_some_and(Decompressor::holds_back);
            if kind == tool_record::FINISHED_ROUND && holds_back {
                // Not all records before it have been handed out.
                continue;
            }
            self.take_tool_record(kind)?;
            return Ok(true);
        }
    }

    /// Takes the next of the records that were compressed. Returns whether there is one.
    fn take_decompressed(&mut self) -> Result<bool, PerfError> {
        let endian = self.endian();
        let Some(decompressor) = &mut self.decompressor else { return Ok(false) };
        let next = decompressor.next(endian, self.record.room());
        if !next.map_err(|_| PerfError::BadCompression { at: self.at })? {
            return Ok(false);
        }
        if let Some(kind) = self.record().map(|record| record.kind()) {
            self.take_tool_record(kind)?;
            // What belongs to a record follows where that is stored.
            self.payload = 0;
        }
        Ok(true)
    }

    /// At the end of the data: takes what has been held back. Returns whether there is a record.
    fn end_decompression(&mut self) -> Result<bool, PerfError> {
        let at = self.at;
        let bad = |_| PerfError::BadCompression { at };
        let Some(decompressor) = &mut self.decompressor else { return Ok(false) };
        decompressor.end().map_err(bad)?;
        if self.take_decompressed()? {
            return Ok(true);
        }
        match self.decompressor.as_ref().is_none_or(Decompressor::is_empty) {
            true => Ok(false),
            false => Err(PerfError::BadCompression { at }),
        }
    }

    /// Reads the next record as it is stored. Returns its kind, if there is one.
    fn read_stored(&mut self) -> Result<Option<RecordType>, PerfError> {
        let (at, endian) = (self.at, self.endian());
        let record = self.record.room();
        record.clear();
        if let Input::Stream(stream) = &mut self.input {
            let shared = next_of_stream(stream, at, endian)?;
            let Some((header, shared)) = shared else { return Ok(None) };
            self.record.share(shared);
            self.at = at.saturating_add(header.size.into());
            return Ok(Some(header.kind));
        }
        let mut header = [0; RecordHeader::SIZE];
        let left = self.end.map(|end| end.saturating_sub(at));
        if left == Some(0) || !fill_or_end(&mut self.input, &mut header, at)? {
            return match left {
                None | Some(0) => Ok(None),
                Some(_) => Err(PerfError::CutOff { at }),
            };
        }
        let parsed = RecordHeader::parse(&header, endian)
            .map_err(|error| PerfError::BadRecord { at, error })?;
        if left.is_some_and(|left| u64::from(parsed.size) > left) {
            return Err(PerfError::CutOff { at });
        }
        record.extend(header);
        let body = u64::try_from(parsed.body_len()).unwrap_or(0);
        let read = self.input.by_ref().take(body).read_to_end(record)?;
        if read < parsed.body_len() {
            record.clear();
            return Err(PerfError::CutOff { at });
        }
        self.at = at.saturating_add(parsed.size.into());
        Ok(Some(parsed.kind))
    }

    /// The record that was read last.
    pub(crate) fn record(&self) -> Option<Record<'_>> {
        Record::parse(&self.record, self.endian()).ok()
    }

    /// The bytes of the record that was read last, for as long as they are needed.
    pub(crate) fn kept_record(&self) -> Bytes {
        self.record.kept()
    }

    /// How many bytes after the record belong to it.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// Copies the bytes after the record that belong to it.
    pub(crate) fn copy_payload(&mut self, out: &mut impl io::Write) -> Result<(), PerfError> {
        let copied = io::copy(&mut self.input.by_ref().take(self.payload), out)?;
        self.took_payload(copied)
    }

    fn skip_payload(&mut self) -> Result<(), PerfError> {
        self.copy_payload(&mut io::sink())
    }

    fn took_payload(&mut self, len: u64) -> Result<(), PerfError> {
        let at = self.record_at();
        self.at = self.at.saturating_add(len);
        match core::mem::take(&mut self.payload).cmp(&len) {
            core::cmp::Ordering::Equal => Ok(()),
            _ => Err(PerfError::CutOff { at }),
        }
    }

    /// Learns from a tool's record what it says of events and of bytes after
    /// itself.
    fn take_tool_record(&mut self, kind: RecordType) -> Result<(), PerfError> {
        let endian = self.endian();
        let body = self.record.get(RecordHeader::SIZE..).unwrap_or_default();
        match kind {
            tool_record::ATTR => {
                let attr_len = Attr::parse(body, endian).map_or(0, |attr| attr.size);
                let attr_len = usize::try_from(attr_len).unwrap_or(usize::MAX);
                let (attr, ids) = body.split_at_checked(attr_len).unwrap_or((body, &[]));
                let (attr, ids) = (attr.to_vec(), words(ids, endian));
                self.events.add(attr, ids, endian)?;
            }
            tool_record::FEATURE => {
                let feature = body.first_chunk().map(|&word| endian.u64(word));
                let section = body.get(8..).unwrap_or_default();
                if feature == Some(Feature::EVENT_DESC.0.into()) {
                    name_events(&mut self.events, section, endian, false);
                } else if feature == Some(Feature::CPU_PMU_CAPS.0.into()) {
                    self.told_branch_entries = pmu_caps::branches(section, endian);
                } else if feature == Some(Feature::OSRELEASE.0.into()) {
                    self.told_release = text_of_section(section, endian);
                }
            }
            tool_record::EVENT_UPDATE => {
                // Which property, whose, and a text; 2 is the name.
                let (head, name) = body.split_at_checked(16).unwrap_or((body, &[]));
                if let &[2, id] = words(head, endian).as_slice() {
                    self.events.set_name(id, text(name));
                }
            }
            tool_record::TRACING_DATA => {
                // Padded to words.
                let size = body.first_chunk().map_or(0, |&size| endian.u32(size));
                self.payload = u64::from(size).next_multiple_of(8);
            }
            tool_record::AUXTRACE => {
                self.payload = body.first_chunk().map_or(0, |&size| endian.u64(size));
            }
            _ => {}
        }
        Ok(())
    }

    fn read_header(mut self) -> Result<Self, PerfError> {
        let endian = self.endian();
        let mut rest = [0; FileHeader::REST];
        if !fill(&mut self.input, &mut rest)? {
            return Err(PerfError::NotPerfData);
        }
        let header = FileHeader::parse(&rest, endian);
        self.header = Some(header);
        let file_len = self.file_len()?;
        let FileHeader { attr_len, attrs, data, .. } = header;
        let bytes = self.section("list of events", attrs)?;
        // An attr, and the place of its ids after it.
        let entry = usize::try_from(attr_len).ok().filter(|&len| len > 16);
        let bad = PerfError::BadSection { part: "list of events", at: attrs.at, len: attrs.len };
        let entry = entry.filter(|&len| bytes.len().is_multiple_of(len)).ok_or(bad)?;
        // Each event has a list of its own. Lists that share bytes could be as many times
        // as long as the file as there are events.
        let mut ids_left = file_len;
        for event in bytes.chunks_exact(entry) {
            let (attr, place) =
                event.split_at_checked(entry.saturating_sub(16)).unwrap_or_default();
            let &[at, len] = words(place, endian).as_slice() else { continue };
            let place = Section { at, len };
            self.check_place("list of event ids", place)?;
            ids_left = ids_left.checked_sub(len).ok_or(PerfError::SharedIds { at, len })?;
            let ids = self.section("list of event ids", place)?;
            self.events.add(attr.to_vec(), words(&ids, endian), endian)?;
        }
        if self.events.all().is_empty() {
            return Err(PerfError::NoEvents);
        }
        self.read_names(&header)?;
        let end = data.at.checked_add(data.len).filter(|_| data.at <= file_len);
        let bad = PerfError::BadSection { part: "data", at: data.at, len: data.len };
        self.end = Some(if data.len == 0 { file_len } else { end.ok_or(bad)? });
        self.at = data.at;
        self.input.seek(data.at)?;
        Ok(self)
    }

    /// The length of the file in bytes, if it is one.
    pub(crate) fn file_len(&self) -> Result<u64, PerfError> {
        match &self.input {
            Input::File(_, len) => Ok(*len),
            Input::Bytes(bytes) => Ok(u64::try_from(bytes.get_ref().len()).unwrap_or(u64::MAX)),
            Input::Pipe(_) | Input::Stream(_) => Err(PerfError::FileFormOnPipe),
        }
    }
}

/// The next record of a stream, which is at `at`: `None` at its end.
fn next_of_stream(
    stream: &mut StreamReader,
    at: u64,
    endian: Endian,
) -> Result<Option<(RecordHeader, Bytes)>, PerfError> {
    let chunk = stream.chunk();
    if chunk.is_empty() {
        return Ok(None);
    }
    let header = RecordHeader::parse(chunk, endian);
    let header = header.map_err(|error| PerfError::BadRecord { at, error })?;
    // No record lies in two chunks.
    let bytes = stream.split(header.size.into()).ok_or(PerfError::CutOff { at })?;
    Ok(Some((header, bytes)))
}

/// The compressed bytes in a record of this kind: all of it, or as many as it says.
fn compressed_bytes(kind: RecordType, body: &[u8], endian: Endian) -> &[u8] {
    let [plain, _] = tool_record::COMPRESSED;
    if kind == plain {
        return body;
    }
    let Some((&len, rest)) = body.split_first_chunk() else { return &[] };
    let len = usize::try_from(endian.u64(len)).unwrap_or(usize::MAX);
    rest.get(..len).unwrap_or(rest)
}

/// Takes the names in a section: by the order of the events in the file form,
/// by their ids in the pipe form.
fn name_events(events: &mut Events, section: &[u8], endian: Endian, in_order: bool) {
    let descriptions = Descriptions::new(section, endian).enumerate();
    for (index, event) in descriptions.filter(|(_, event)| !event.name.is_empty()) {
        match event.id {
            id if in_order => events.set_name_at(index, id, text(event.name)),
            Some(id) => events.set_name(id, text(event.name)),
            None => {}
        }
    }
}

/// The words in `bytes`.
fn words(bytes: &[u8], endian: Endian) -> Vec<u64> {
    unwind_perf::record::Words::new(bytes, endian).collect()
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> Untrusted {
    Untrusted::from(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// Fills `buf`. Returns whether the input has that much.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// As [`fill`], for a record at `at`: an end inside it is an error.
fn fill_or_end(input: &mut impl Read, buf: &mut [u8], at: u64) -> Result<bool, PerfError> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(PerfError::CutOff { at }),
            Ok(read) => filled = filled.saturating_add(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
