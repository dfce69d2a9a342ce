//! Files of the program lzop: blocks of LZO after a header, numbers big-endian.

/// Which optional fields a header or a block has.
const FILTER: u32 = 0x800;
const EXTRA: u32 = 0x40;
/// Checksums of what a block stands for, and of its bytes where they are compressed.
const SUMS: [u32; 2] = [0x1, 0x100];
const COMPRESSED_SUMS: [u32; 2] = [0x2, 0x200];
/// The largest block that lzop makes.
const BLOCK_LIMIT: u32 = 64 << 20;

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len.try_into().ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    fn half(&mut self) -> Option<u16> {
        self.bytes(2)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes(4)?.first_chunk().copied().map(u32::from_be_bytes)
    }

    fn skip_sums(&mut self, flags: u32, kinds: [u32; 2]) -> Option<()> {
        for kind in kinds {
            if flags & kind != 0 {
                self.word()?;
            }
        }
        Some(())
    }

    /// The header; returns its flags.
    fn header(&mut self) -> Option<u32> {
        // The magic, nine bytes.
        self.bytes(9)?;
        let version = self.half()?;
        self.half()?;
        let is_new = version >= 0x940;
        if is_new {
            self.half()?;
        }
        self.byte()?;
        if is_new {
            self.byte()?;
        }
        let flags = self.word()?;
        if flags & FILTER != 0 {
            self.word()?;
        }
        // Mode and time.
        self.bytes(if is_new { 12 } else { 8 })?;
        let name = self.byte()?;
        self.bytes(name.into())?;
        self.word()?;
        if flags & EXTRA != 0 {
            let len = self.word()?;
            self.bytes(len)?;
            self.word()?;
        }
        Some(flags)
    }
}

/// Up to `len` bytes, or somewhat more.
pub(super) fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut rest = Rest(packed);
    let flags = rest.header()?;
    let mut bytes = Vec::new();
    while bytes.len() <= len {
        let size = rest.word()?;
        if size == 0 {
            break;
        }
        let packed_size = rest.word()?;
        if size > BLOCK_LIMIT {
            return None;
        }
        rest.skip_sums(flags, SUMS)?;
        if packed_size < size {
            rest.skip_sums(flags, COMPRESSED_SUMS)?;
        }
        let block = rest.bytes(packed_size)?;
        if packed_size == size {
            bytes.extend_from_slice(block);
        } else {
            let start = bytes.len();
            let end = start.checked_add(size.try_into().ok()?)?;
            bytes.resize(end, 0);
            let written = lzokay::decompress::decompress(block, bytes.get_mut(start..)?).ok()?;
            bytes.truncate(start.checked_add(written)?);
        }
    }
    Some(bytes)
}
