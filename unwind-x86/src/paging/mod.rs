//! Another machine's linear addresses: page walks as the CPU does them, and
//! [`Memory`](unwind_core::Memory) by way of them.
//!
//! A hypervisor that looks into its guest has the vCPU's registers and can
//! read guest physical memory. [`AddressSpace`] takes the control registers and the privilege
//! level, so that what the vCPU executes may read what is its own;
//! [`PagedMemory`] joins it with any [`PhysicalMemory`] and is a `Memory` that
//! a walker reads stacks through. A kernel that must not fault uses the same
//! walk over its own tables.
//!
//! | type | what |
//! |---|---|
//! | [`AddressSpace`] | mode, root table and rights: translates one address |
//! | [`PagedMemory`] | a `Memory`, with a small TLB |
//! | [`PhysicalMemory`] | what the host provides, one method |
//! | [`FlatMemory`] | physical memory in one slice, from address zero |
//!
//! With the feature `vm-memory` there is also an adapter for the `GuestMemory`
//! of rust-vmm.
//!
//! # Untrusted input
//!
//! Tables are the guest's and may hold anything. A walk reads one entry a
//! level, so at most five, whatever they hold; a table that is its own entry
//! is a table like others. Nothing is written: accessed and dirty bits stay as
//! they are.
//!
//! # Example
//!
//! ```
//! use unwind_core::{Memory, ReadError, VirtAddr};
//! use unwind_x86::paging::{AddressSpace, FlatMemory, PagedMemory, PagingMode};
//!
//! // 32-bit paging: directory at 0x1000, table at 0x2000, page at 0x3000.
//! let mut ram = vec![0; 0x4000];
//! ram[0x1000..0x1004].copy_from_slice(&0x2007_u32.to_le_bytes());
//! ram[0x2004..0x2008].copy_from_slice(&0x3007_u32.to_le_bytes());
//! ram[0x3010..0x3014].copy_from_slice(b"here");
//!
//! let space = AddressSpace::new(PagingMode::TwoLevel, 0x1000);
//! let mut memory = PagedMemory::new(FlatMemory::new(&ram), space);
//! let mut buf = [0; 4];
//! memory.read(VirtAddr::new(0x1010), &mut buf)?;
//! assert_eq!(&buf, b"here");
//! let absent = memory.read(VirtAddr::new(0x5000), &mut buf);
//! assert_eq!(absent, Err(ReadError::NotResident));
//! # Ok::<(), ReadError>(())
//! ```

mod address_space;
mod entry;
mod fault;
mod memory;
mod mode;
mod physical;
mod tlb;
#[cfg(feature = "vm-memory")]
mod vm_memory;

pub use address_space::{Access, AddressSpace, ControlRegisters, Page};
pub use fault::{Fault, Level};
pub use memory::PagedMemory;
pub use mode::PagingMode;
pub use physical::{FlatMemory, PhysAddr, PhysicalMemory};
#[cfg(feature = "vm-memory")]
pub use vm_memory::VmMemory;
