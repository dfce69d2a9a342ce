//! Memory of which a test says what is where.

use std::collections::{BTreeMap, BTreeSet};

use unwind_core::{Memory, ReadError, VirtAddr};

/// Bytes by address, and which reads fail.
#[derive(Clone, Debug, Default)]
pub struct SparseMemory {
    bytes: BTreeMap<u64, u8>,
    /// Which of the reads fails; the first one is number 1.
    pub fails: Option<(usize, ReadError)>,
    /// The numbers of the pages that are absent.
    pub absent: BTreeSet<u64>,
    /// The addresses of all reads.
    pub reads: Vec<u64>,
}

impl SparseMemory {
    /// With `bytes` at an address.
    #[must_use]
    pub fn put(mut self, at: u64, bytes: &[u8]) -> Self {
        self.bytes.extend((at..).zip(bytes.iter().copied()));
        self
    }

    /// With code at the start of a page of `hlt`.
    #[must_use]
    pub fn code(self, at: u64, bytes: &[u8]) -> Self {
        self.put(at, &[0xf4; 4096]).put(at, bytes)
    }

    /// With words of 8 bytes, little-endian.
    #[must_use]
    pub fn words(self, at: u64, words: &[u64]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(at, &bytes)
    }

    /// With words of 4 bytes, little-endian.
    #[must_use]
    pub fn words_32(self, at: u64, words: &[u32]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(at, &bytes)
    }

    /// The same memory before any read, whose n-th read fails; the first one is number 1.
    #[must_use]
    pub fn failing(&self, read: usize, error: ReadError) -> Self {
        Self { reads: Vec::new(), fails: Some((read, error)), ..self.clone() }
    }
}

impl Memory for SparseMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads.push(addr.get());
        match self.fails {
            Some((read, error)) if read == self.reads.len() => return Err(error),
            _ => {}
        }
        for (byte, addr) in buf.iter_mut().zip(addr.get()..) {
            if self.absent.contains(&(addr >> 12)) {
                return Err(ReadError::NotResident);
            }
            *byte = *self.bytes.get(&addr).ok_or(ReadError::Invalid)?;
        }
        Ok(())
    }
}
