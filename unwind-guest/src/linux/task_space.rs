//! The page tables that a stack of a task is read by.

use unwind_core::{Registers as _, VirtAddr};
use unwind_x86::paging::{Access, AddressSpace, Fault, PagedMemory, PhysAddr, PhysicalMemory};

use crate::linux::error::LinuxError;
use crate::linux::kernel::GuestLinux;
use crate::linux::task::Task;
use crate::vcpu::{USER_TABLE, VcpuRegisters};

impl GuestLinux {
    /// The registers of a vCPU as the walk of the stack that it has needs them. A kernel that switches tasks has the
    /// page tables of the next one for some instructions before it has its stack: user code that has entered by the
    /// former one's stack is read by the former one's page tables. A task that ends has given its memory back and may have page
    /// tables of any other task: it gets those of the kernel, which have no user code. `mem` has all of the kernel.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn registers_for_stack<P: PhysicalMemory, const PAGES: usize>(
        &self,
        task: &Task,
        vcpu: &VcpuRegisters,
        mem: &mut PagedMemory<P, PAGES>,
    ) -> Result<VcpuRegisters, LinuxError> {
        let sp = VirtAddr::new(vcpu.x86_64_registers().sp());
        if vcpu.is_user() || !self.is_stack_of(task, sp, mem)? {
            return Ok(*vcpu);
        }
        if self.page_table_of(task, mem)?.is_none() {
            let Some(root) = self.page_table() else { return Ok(*vcpu) };
            return Ok(VcpuRegisters { cr3: place_of(root, mem)?.get(), ..*vcpu });
        }
        let space = vcpu.address_space();
        if self.is_space_of(task, &space, mem)? {
            return Ok(*vcpu);
        }
        Ok(self.with_page_table_of(task, vcpu, mem)?.unwrap_or(*vcpu))
    }

    /// The registers of a vCPU with the page tables of a task in place of its own, as for the dump of a kernel that has
    /// crashed, which lacks these; `None` of a thread of the kernel, or if the kernel does not tell. `mem` has all of the
    /// kernel.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn with_page_table_of<P: PhysicalMemory, const PAGES: usize>(
        &self,
        task: &Task,
        vcpu: &VcpuRegisters,
        mem: &mut PagedMemory<P, PAGES>,
    ) -> Result<Option<VcpuRegisters>, LinuxError> {
        let Some(root) = self.root_of(task, mem)? else { return Ok(None) };
        let own = VcpuRegisters { cr3: root.get(), ..*vcpu };
        let space = own.kernel_address_spaces().0;
        let has_kernel = self.is_in(&mut PagedMemory::<_, PAGES>::with_tlb(mem.physical(), space));
        Ok(has_kernel.then_some(own))
    }

    /// Whether an address space is a task's. Two are not: that which a thread of the kernel borrows, and that of the
    /// next task while the kernel switches to it. `mem` has all of the kernel.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn is_space_of<P: PhysicalMemory, const PAGES: usize>(
        &self,
        task: &Task,
        space: &AddressSpace,
        mem: &mut PagedMemory<P, PAGES>,
    ) -> Result<bool, LinuxError> {
        let Some(root) = self.root_of(task, mem)? else { return Ok(false) };
        let (own, found) = (root.get(), space.root().get());
        let of_user = own & USER_TABLE == 0 && found == own | USER_TABLE;
        if found == own || !of_user {
            return Ok(found == own);
        }
        // The second table lacks the kernel's data, such as the first one.
        let Some(first) = self.page_table_of(task, mem)? else { return Ok(false) };
        Ok(space.access(Access::Supervisor).translate(mem.physical(), first).is_err())
    }

    /// The root of a task's page tables.
    fn root_of<P: PhysicalMemory, const PAGES: usize>(
        &self,
        task: &Task,
        mem: &mut PagedMemory<P, PAGES>,
    ) -> Result<Option<PhysAddr>, LinuxError> {
        match self.page_table_of(task, mem)? {
            Some(root) => place_of(root, mem).map(Some),
            None => Ok(None),
        }
    }
}

/// Where what the kernel has at an address is in physical memory.
fn place_of<P: PhysicalMemory, const PAGES: usize>(
    addr: VirtAddr,
    mem: &mut PagedMemory<P, PAGES>,
) -> Result<PhysAddr, LinuxError> {
    let space = *mem.space();
    let page = space.translate(mem.physical(), addr);
    let unreadable = |fault: Fault| LinuxError::Unreadable { addr, error: fault.read_error() };
    Ok(page.map_err(unreadable)?.locate(addr))
}
