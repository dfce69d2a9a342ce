//! A stream of records from the thread that empties the rings to the one that has stacks walked.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::{Buf as _, Bytes};

/// How many bytes may wait before samples are dropped.
const WAITING: usize = 128 << 20;

/// The end that records are put in.
#[derive(Clone, Debug)]
pub(crate) struct StreamWriter {
    chunks: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

/// The end that they are read from: as bytes, or record by record without copies of them.
#[derive(Debug)]
pub struct StreamReader {
    /// Each is read to its end before the next one.
    chunks: VecDeque<Receiver<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
    /// What is left of the chunk that is read.
    chunk: Bytes,
}

/// How many bytes wait to be read.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// Whether the reader is too slow: more waits than the thread that empties the rings hands
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
    (writer, StreamReader { chunks: [receiver].into(), waiting, chunk: Bytes::new() })
}

impl StreamWriter {
    /// Hands on some bytes: whole records. If the reader is gone they are not missed.
    pub(crate) fn write(&self, bytes: Vec<u8>) {
        self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let _ = self.chunks.send(bytes);
    }

    /// Whether more waits than may: samples are to be dropped then.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > WAITING
    }
}

impl StreamReader {
    /// The same, after all of another one, of which nothing was read yet.
    pub(crate) fn after(mut self, first: Self) -> Self {
        first.chunks.into_iter().rev().for_each(|chunks| self.chunks.push_front(chunks));
        self
    }

    /// How much waits in it, from now on.
    pub fn backlog(&self) -> Backlog {
        Backlog(Arc::clone(&self.waiting))
    }

    /// What is left of the chunk that is read, or the next one: nothing at the end of the
    /// stream alone.
    pub(crate) fn chunk(&mut self) -> &[u8] {
        while self.chunk.is_empty()
            && let Some(chunks) = self.chunks.front()
        {
            match chunks.recv() {
                Ok(chunk) => self.chunk = chunk.into(),
                // The writer is gone, and all is read.
                Err(_) => _ = self.chunks.pop_front(),
            }
        }
        &self.chunk
    }

    /// Takes bytes of the chunk, which they share. `None` if it has fewer.
    pub(crate) fn split(&mut self, len: usize) -> Option<Bytes> {
        let bytes = (len <= self.chunk.len()).then(|| self.chunk.split_to(len));
        self.count_read(bytes.as_ref().map_or(0, Bytes::len));
        bytes
    }

    fn count_read(&self, len: usize) {
        self.waiting.fetch_sub(len, Ordering::Relaxed);
    }
}

impl Read for StreamReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.chunk().len().min(buf.len());
        self.chunk.copy_to_slice(buf.get_mut(..len).unwrap_or_default());
        self.count_read(len);
        Ok(len)
    }
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
    fn what_comes_first_is_read_first_also_if_it_is_written_later() {
        let waiting = Arc::default();
        let ((first, before), (writer, reader)) = (stream(&waiting), stream(&waiting));
        let mut reader = reader.after(before);
        writer.write(b"later".to_vec());
        first.write(b"first ".to_vec());
        let more = first.clone();
        drop((first, writer));
        let late = std::thread::spawn(move || more.write(b"and ".to_vec()));
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        late.join().unwrap();
        assert_eq!(all, b"first and later");
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn records_are_taken_whole_and_keep_their_bytes() {
        let (writer, mut reader) = stream(&Arc::default());
        writer.write(b"abcdef".to_vec());
        writer.write(Vec::new());
        writer.write(b"gh".to_vec());
        drop(writer);
        assert_eq!(reader.chunk(), b"abcdef");
        let first = reader.split(2).unwrap();
        assert_eq!((reader.split(5), reader.chunk()), (None, &b"cdef"[..]));
        assert_eq!(reader.waiting.load(Ordering::Relaxed), 6);
        let second = reader.split(4).unwrap();
        assert_eq!(reader.chunk(), b"gh");
        assert_eq!(reader.split(2).as_deref(), Some(&b"gh"[..]));
        assert!(reader.chunk().is_empty());
        assert_eq!(reader.waiting.load(Ordering::Relaxed), 0);
        assert_eq!([first, second], [&b"ab"[..], b"cdef"]);
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
