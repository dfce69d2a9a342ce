//! Writes a file of snapshots.

use std::io::{self, Write};

use crate::{Cfi, Image, MAGIC, Snapshot, Space, VERSION, WHOLE, kind};

/// Writes records one after another.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    images: u32,
    spaces: u32,
}

impl<W: Write> Writer<W> {
    /// Starts a file.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { out, images: 0, spaces: 0 })
    }

    /// Adds an image and returns its index. A build id is cut off after 255
    /// bytes.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn image(&mut self, image: &Image<'_>) -> io::Result<u32> {
        let id = image.build_id.get(..255).unwrap_or(image.build_id);
        let len = [u8::try_from(id.len()).unwrap_or(u8::MAX)];
        self.record(kind::IMAGE, &[&len, id, image.path])?;
        Ok(next(&mut self.images))
    }

    /// Adds an address space and returns its index.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn space(&mut self, space: &Space) -> io::Result<u32> {
        let mut body = Vec::new();
        for mapping in &space.mappings {
            for word in [mapping.range.start, mapping.range.end, mapping.bias] {
                body.extend(word.to_le_bytes());
            }
            body.extend(u64::from(mapping.image).to_le_bytes());
        }
        self.record(kind::SPACE, &[&body])?;
        Ok(next(&mut self.spaces))
    }

    /// Adds a snapshot.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn snapshot(&mut self, snapshot: &Snapshot<'_>) -> io::Result<()> {
        let flags = if snapshot.is_whole { WHOLE } else { 0 };
        let mut head = Vec::new();
        for word in [snapshot.space, snapshot.process, snapshot.thread, flags] {
            head.extend(word.to_le_bytes());
        }
        for word in [snapshot.time, snapshot.rip].iter().chain(&snapshot.gpr) {
            head.extend(word.to_le_bytes());
        }
        head.extend(snapshot.stack_start.to_le_bytes());
        self.record(kind::SNAPSHOT, &[&head, snapshot.stack])
    }

    /// Adds call frame information.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn cfi(&mut self, cfi: &Cfi<'_>) -> io::Result<()> {
        let image = u64::from(cfi.image).to_le_bytes();
        self.record(kind::CFI, &[&image, &cfi.addr.to_le_bytes(), cfi.eh_frame])
    }

    fn record(&mut self, kind: u32, body: &[&[u8]]) -> io::Result<()> {
        let len = body.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        body.iter().try_for_each(|part| self.out.write_all(part))
    }

    /// Ends the file and gives back what it was written to.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The number of the record that was written, and counts it.
fn next(count: &mut u32) -> u32 {
    let index = *count;
    *count = count.saturating_add(1);
    index
}
