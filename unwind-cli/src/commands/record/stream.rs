//! From the thread that empties the rings to the one that has stacks walked.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{Attr, Endian};

use crate::commands::perf::error::PerfError;
use crate::commands::perf::header::Start;
use crate::commands::perf::reader::PerfReader;
use crate::commands::perf::tool_record;
use crate::commands::record::engine::SampledEvent;

/// How many bytes may wait before samples are dropped.
const WAITING: usize = 128 << 20;

/// The end that records are put in.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    chunks: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

/// The end that they are read from.
#[derive(Debug)]
pub(crate) struct StreamReader {
    chunks: Receiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    chunk: Vec<u8>,
    /// How much of the chunk was read.
    read: usize,
}

/// How many bytes wait to be read.
#[derive(Clone, Debug)]
pub(crate) struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// Whether the reader falls behind: more waits than the thread that empties the rings hands
    /// on at a time.
    pub(crate) fn is_long(&self) -> bool {
        /// An eighth of what leads to samples being dropped.
        const LONG: usize = WAITING / 8;
        self.0.load(Ordering::Relaxed) > LONG
    }
}

/// A stream of bytes from one thread to another, which never waits for its reader.
///
/// `waiting` counts what waits in it, and in others that share the count.
pub(crate) fn stream(waiting: &Arc<AtomicUsize>) -> (StreamWriter, StreamReader) {
    let (sender, receiver) = channel();
    let writer = StreamWriter { chunks: sender, waiting: Arc::clone(waiting) };
    let waiting = Arc::clone(waiting);
    (writer, StreamReader { chunks: receiver, waiting, chunk: Vec::new(), read: 0 })
}

impl StreamWriter {
    /// Hands on some bytes. Nobody may read them any more; then they are not missed.
    pub(crate) fn write(&self, bytes: Vec<u8>) {
        self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let _ = self.chunks.send(bytes);
    }

    /// Whether so much waits that samples are to be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > WAITING
    }
}

impl StreamReader {
    /// How much waits in it, from now on.
    pub(crate) fn backlog(&self) -> Backlog {
        Backlog(Arc::clone(&self.waiting))
    }
}

impl Read for StreamReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.read == self.chunk.len() {
            self.waiting.fetch_sub(self.chunk.len(), Ordering::Relaxed);
            self.read = 0;
            self.chunk = Vec::new();
            match self.chunks.recv() {
                Ok(chunk) => self.chunk = chunk,
                // The writer is gone, and all is read.
                Err(_) => return Ok(0),
            }
        }
        let rest = self.chunk.get(self.read..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        let (now, _) = rest.split_at_checked(len).unwrap_or_default();
        buf.get_mut(..len).unwrap_or_default().copy_from_slice(now);
        self.read = self.read.saturating_add(len);
        Ok(len)
    }
}

/// How a stream of records begins: the start of pipe form, and the events.
pub(crate) fn stream_start(events: &[SampledEvent]) -> Vec<u8> {
    let endian = Endian::Little;
    let mut bytes = Start { endian, size: Start::PIPE }.bytes().to_vec();
    for event in events {
        let mut attr = vec![0; EventAttr::SIZE];
        let len = event.attr.encode(&mut attr, endian).unwrap_or(0);
        attr.truncate(len);
        let ids = event.ids.iter().flat_map(|&id| endian.bytes_of_u64(id));
        let body: Vec<u8> = attr.into_iter().chain(ids).collect();
        let len = body.len().saturating_add(8);
        bytes.extend(endian.bytes_of_u32(tool_record::ATTR.0));
        bytes.extend(endian.bytes_of_u16(0));
        bytes.extend(endian.bytes_of_u16(u16::try_from(len).unwrap_or(u16::MAX)));
        bytes.extend(body);
    }
    bytes
}

/// The layout of all records of a stream of these events.
///
/// # Errors
///
/// [`PerfError`] if there are no events.
pub(crate) fn layout(events: &[SampledEvent]) -> Result<Attr, PerfError> {
    Ok(read_start(events)?.events().all().first().ok_or(PerfError::NoEvents)?.attr)
}

/// A reader that has read the start of a stream.
///
/// # Errors
///
/// [`PerfError`] if there is too much of it.
pub(crate) fn read_start(events: &[SampledEvent]) -> Result<PerfReader, PerfError> {
    let mut reader = PerfReader::from_bytes(stream_start(events))?;
    while reader.read()? {}
    Ok(reader)
}

/// The mark that all rings were emptied once.
pub(crate) fn round() -> [u8; 8] {
    let [a, b, c, d] = Endian::Little.bytes_of_u32(tool_record::FINISHED_ROUND.0);
    [a, b, c, d, 0, 0, 8, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_end_with_the_writer() {
        let (writer, mut reader) = stream(&Arc::default());
        for chunk in [&b"abc"[..], b"", b"defgh", b"i"] {
            writer.write(chunk.to_vec());
        }
        drop(writer);
        let mut buf = [0; 4];
        assert_eq!(reader.read(&mut buf).unwrap(), 3);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"defghi");
        assert_eq!(reader.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_stream_is_full_until_its_reader_has_come_along() {
        let (writer, mut reader) = stream(&Arc::default());
        assert!(!writer.is_full());
        assert!(!reader.backlog().is_long());
        writer.write(vec![0; WAITING + 1]);
        writer.write(vec![1]);
        assert!(writer.is_full() && reader.backlog().is_long());
        let mut bytes = vec![0; WAITING + 2];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.last(), Some(&1));
        assert!(!writer.is_full());
    }
}
