//! Small reads that are near each other, of which few are reads of memory.

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;

/// How many bytes are read at once. No block of them crosses a page.
const BLOCK: usize = 1024;
const IN_BLOCK: u64 = 1023;

/// Memory, with the block that was read last.
#[derive(Debug)]
pub(crate) struct Window<'m, M> {
    mem: &'m mut M,
    /// Where the block begins, if there is one.
    start: Option<u64>,
    block: [u8; BLOCK],
}

impl<'m, M: Memory> Window<'m, M> {
    pub(crate) const fn new(mem: &'m mut M) -> Self {
        Self { mem, start: None, block: [0; BLOCK] }
    }

    /// The memory itself.
    pub(crate) const fn memory(&mut self) -> &mut M {
        self.mem
    }

    /// Reads bytes, of which there are at most as many as a block has where that is to be fast.
    pub(crate) fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), LinuxError> {
        let start = addr & !IN_BLOCK;
        let at = usize::try_from(addr & IN_BLOCK).unwrap_or_default();
        let is_inside = at.saturating_add(buf.len()) <= BLOCK;
        if !is_inside {
            return read(self.mem, addr, buf);
        }
        self.load(start)?;
        for (byte, there) in buf.iter_mut().zip(self.block.get(at..).unwrap_or_default()) {
            *byte = *there;
        }
        Ok(())
    }

    /// What is there from an address on, up to the end of its block: one byte at least.
    pub(crate) fn block_from(&mut self, addr: u64) -> Result<&[u8], LinuxError> {
        self.load(addr & !IN_BLOCK)?;
        let at = usize::try_from(addr & IN_BLOCK).unwrap_or_default();
        Ok(self.block.get(at..).unwrap_or_default())
    }

    /// Reads the block that begins there, unless it is the last that was read.
    fn load(&mut self, start: u64) -> Result<(), LinuxError> {
        if self.start != Some(start) {
            self.start = None;
            read(self.mem, start, &mut self.block)?;
            self.start = Some(start);
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, addr: u64) -> Result<[u8; N], LinuxError> {
        let mut bytes = [0; N];
        self.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self, addr: u64) -> Result<u8, LinuxError> {
        self.array(addr).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, addr: u64) -> Result<u16, LinuxError> {
        self.array(addr).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, addr: u64) -> Result<u32, LinuxError> {
        self.array(addr).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, addr: u64) -> Result<u64, LinuxError> {
        self.array(addr).map(u64::from_le_bytes)
    }
}

/// Reads bytes, and says where that was.
pub(crate) fn read<M: Memory>(mem: &mut M, addr: u64, buf: &mut [u8]) -> Result<(), LinuxError> {
    let addr = VirtAddr::new(addr);
    mem.read(addr, buf).map_err(|error| LinuxError::Unreadable { addr, error })
}

/// Reads a pointer.
pub(crate) fn read_u64<M: Memory>(mem: &mut M, addr: u64) -> Result<u64, LinuxError> {
    let mut bytes = [0; 8];
    read(mem, addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
}

/// Reads a number.
pub(crate) fn read_u32<M: Memory>(mem: &mut M, addr: u64) -> Result<u32, LinuxError> {
    let mut bytes = [0; 4];
    read(mem, addr, &mut bytes).map(|()| u32::from_le_bytes(bytes))
}

/// The next multiple of a power of two.
pub(crate) const fn align(addr: u64, to: u64) -> u64 {
    let below = to.wrapping_sub(1);
    addr.wrapping_add(below) & !below
}
