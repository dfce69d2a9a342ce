//! Linear addresses as a [`Memory`].

use unwind_core::{Memory, ReadError, VirtAddr};

use super::address_space::AddressSpace;
use super::fault::Fault;
use super::mode::PAGE_BITS;
use super::physical::{PhysAddr, PhysicalMemory};
use super::tlb::Tlb;

/// The memory of an address space, read through its page tables.
///
/// It remembers the translations of `TLB` pages, 16 bytes each, so that a
/// stack walk does not walk the tables once a word. They hold until
/// [`flush`](Self::flush): a host flushes whenever the target may have run.
/// Faults are not remembered. A `TLB` of 0 remembers nothing.
#[derive(Clone, Debug)]
pub struct PagedMemory<P, const TLB: usize = 16> {
    phys: P,
    space: AddressSpace,
    tlb: Tlb<TLB>,
    last_fault: Option<(VirtAddr, Fault)>,
}

impl<P: PhysicalMemory> PagedMemory<P> {
    /// The memory of `space`, whose tables and pages are in `phys`.
    #[must_use]
    pub const fn new(phys: P, space: AddressSpace) -> Self {
        Self::with_tlb(phys, space)
    }
}

impl<P: PhysicalMemory, const TLB: usize> PagedMemory<P, TLB> {
    /// The same as [`new`](PagedMemory::new), with a TLB of any size.
    #[must_use]
    pub const fn with_tlb(phys: P, space: AddressSpace) -> Self {
        Self { phys, space, tlb: Tlb::new(), last_fault: None }
    }

    /// The address space.
    #[must_use]
    pub const fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Reads another address space from here on, with an empty TLB.
    pub fn switch(&mut self, space: AddressSpace) {
        self.space = space;
        self.flush();
    }

    /// Forgets all translations.
    pub fn flush(&mut self) {
        self.tlb.flush();
    }

    /// Forgets the translation of the 4 KiB that hold `addr`; of a large page
    /// the other pieces stay.
    pub fn flush_page(&mut self, addr: VirtAddr) {
        self.tlb.flush_page(addr.get());
    }

    /// The address and the reason of the last read that failed.
    ///
    /// A walk says only whether memory was absent or invalid. This says which
    /// entry of which table it was.
    #[must_use]
    pub const fn last_fault(&self) -> Option<(VirtAddr, Fault)> {
        self.last_fault
    }

    /// The physical memory.
    pub const fn physical(&mut self) -> &mut P {
        &mut self.phys
    }

    /// Reads within one page of 4 KiB.
    #[inline]
    fn read_in_page(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), Fault> {
        let start = match self.tlb.get(addr.get()) {
            Some(start) => start,
            None => self.translate(addr)?,
        };
        let at = PhysAddr::new(start.get() | offset_in_page(addr));
        self.phys.read(at, buf).map_err(|error| Fault::Page { at, error })
    }

    /// Where the 4 KiB that hold `addr` begin.
    #[cold]
    fn translate(&mut self, addr: VirtAddr) -> Result<PhysAddr, Fault> {
        let page = self.space.translate(&mut self.phys, addr)?;
        let start = PhysAddr::new(page.locate(addr).get() & !PAGE_MASK);
        self.tlb.insert(addr.get(), start);
        Ok(start)
    }
}

const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;

const fn offset_in_page(addr: VirtAddr) -> u64 {
    addr.get() & PAGE_MASK
}

impl<P: PhysicalMemory, const TLB: usize> Memory for PagedMemory<P, TLB> {
    #[inline]
    fn read(&mut self, mut addr: VirtAddr, mut buf: &mut [u8]) -> Result<(), ReadError> {
        while !buf.is_empty() {
            let left = (PAGE_MASK + 1).wrapping_sub(offset_in_page(addr));
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let (here, after) = buf.split_at_mut(len);
            self.read_in_page(addr, here).map_err(|fault| {
                self.last_fault = Some((addr, fault));
                fault.read_error()
            })?;
            buf = after;
            // Past the last address of all there is only zero, which a read
            // does not wrap to.
            match addr.checked_add(left) {
                Some(next) => addr = next,
                None if buf.is_empty() => {}
                None => return Err(ReadError::Invalid),
            }
        }
        Ok(())
    }
}
