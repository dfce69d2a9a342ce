//! Instruction bytes of the target, read once into a small window.

use unwind_core::{Memory, VirtAddr};

/// Up to `N` bytes from an address on. Code near the end of a mapping has
/// fewer: what lies on the next page is then left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// The smallest page there is; memory is present or absent by pages.
const PAGE: u64 = 4096;

impl<const N: usize> Window<N> {
    pub(crate) const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// Reads the bytes from `addr` on.
    #[inline(never)]
    pub(crate) fn after<M: Memory>(addr: VirtAddr, mem: &mut M) -> Self {
        let mut bytes = [0; N];
        if mem.read(addr, &mut bytes).is_ok() {
            return Self { bytes, len: N };
        }
        let to_page_end = PAGE.wrapping_sub(addr.get() % PAGE);
        Self::read(addr, to_page_end, mem)
    }

    /// Reads those from `addr` on that are before `end`.
    #[inline(never)]
    pub(crate) fn between<M: Memory>(addr: VirtAddr, end: VirtAddr, mem: &mut M) -> Self {
        let len = end.get().saturating_sub(addr.get());
        if u64::try_from(N).is_ok_and(|wanted| len >= wanted) {
            return Self::after(addr, mem);
        }
        Self::read(addr, len, mem)
    }

    /// Reads the bytes just before `addr`.
    #[inline(never)]
    pub(crate) fn before<M: Memory>(addr: VirtAddr, mem: &mut M) -> Self {
        let mut bytes = [0; N];
        let wanted = u64::try_from(N).unwrap_or(u64::MAX);
        let start = addr.checked_sub(wanted);
        if start.is_some_and(|start| mem.read(start, &mut bytes).is_ok()) {
            return Self { bytes, len: N };
        }
        let from_page_start = addr.get() % PAGE;
        let len = from_page_start.min(wanted);
        match addr.checked_sub(len) {
            Some(start) => Self::read(start, len, mem),
            None => Self { bytes, len: 0 },
        }
    }

    fn read<M: Memory>(addr: VirtAddr, len: u64, mem: &mut M) -> Self {
        let mut bytes = [0; N];
        let len = usize::try_from(len).unwrap_or(N).min(N);
        let is_read = bytes.get_mut(..len).is_some_and(|part| mem.read(addr, part).is_ok());
        Self { bytes, len: if is_read { len } else { 0 } }
    }

    /// The bytes that could be read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}
