//! Guest memory of the rust-vmm hypervisors.

use core::fmt;

use unwind_core::ReadError;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryError};

use super::physical::{PhysAddr, PhysicalMemory};

/// The guest physical memory of a VM that `vm-memory` describes.
///
/// Needs the feature `vm-memory`, which needs `std`.
pub struct VmMemory<'m, M: ?Sized>(&'m M);

impl<'m, M: GuestMemory + ?Sized> VmMemory<'m, M> {
    /// The memory of the VM.
    #[must_use]
    pub const fn new(memory: &'m M) -> Self {
        Self(memory)
    }
}

impl<M: ?Sized> Clone for VmMemory<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for VmMemory<'_, M> {}

impl<M: ?Sized> fmt::Debug for VmMemory<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmMemory").finish_non_exhaustive()
    }
}

impl<M: GuestMemory + ?Sized> PhysicalMemory for VmMemory<'_, M> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_slice(buf, GuestAddress(addr.get())).map_err(|error| match error {
            // The guest has the memory; the host has not mapped it.
            GuestMemoryError::HostAddressNotAvailable => ReadError::NotResident,
            _ => ReadError::Invalid,
        })
    }
}
