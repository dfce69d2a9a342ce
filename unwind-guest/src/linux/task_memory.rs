//! The memory of a task, with the pages of files that it has mapped and not touched.

use unwind_core::{Memory, ReadError, VirtAddr};
use unwind_x86::paging::{AddressSpace, Fault, PagedMemory, PhysAddr, PhysicalMemory};

use crate::linux::kernel::GuestLinux;
use crate::linux::page_cache::page_of;
use crate::linux::task::Task;
use crate::parts::VcpuMemory;

/// How many pages of files are remembered; the tables of a program are some.
const KNOWN: usize = 64;

const PAGE: u64 = 4096;

/// A task, and its kernel, which keeps the pages of files.
#[derive(Clone, Copy, Debug)]
pub struct TaskFiles<'k> {
    /// The kernel.
    pub kernel: &'k GuestLinux,
    /// An address space that has all of it, as of
    /// [`kernel_address_spaces`](crate::VcpuRegisters::kernel_address_spaces).
    pub space: AddressSpace,
    /// What the vCPU runs.
    pub task: Task,
}

/// The memory of a vCPU's task as the task itself would read it.
///
/// A program's tables are in pages that it does not touch itself, so its page tables lack them. An access would bring
/// them without any wait, as the kernel has them in memory: [`GuestLinux::file_page`] tells where. This memory reads
/// them there if the [address space is the task's](GuestLinux::is_space_of). What it says is not resident is neither in the
/// page tables nor among the kernel's pages.
///
/// # Example
///
/// ```
/// use unwind_guest::VcpuRegisters;
/// use unwind_guest::linux::{GuestLinux, TaskFiles, TaskMemory, cpu_number};
/// use unwind_guest::paging::{PagedMemory, PhysicalMemory};
///
/// /// The memory that a vCPU's code reads; `gdt` is its register GDTR.
/// fn memory_of<'k, P: PhysicalMemory>(
///     vcpu: &VcpuRegisters,
///     gdt: u64,
///     kernel: &'k GuestLinux,
///     mut ram: P,
/// ) -> TaskMemory<'k, P> {
///     let (own, other) = vcpu.kernel_address_spaces();
///     let space = other.unwrap_or(own);
///     let mut memory = PagedMemory::<_, 16>::with_tlb(&mut ram, space);
///     let task = cpu_number(gdt, &mut memory).and_then(|cpu| kernel.task(cpu, &mut memory));
///     let Ok(Some(task)) = task else {
///         return TaskMemory::new(PagedMemory::with_tlb(ram, vcpu.address_space()), None);
///     };
///     let vcpu = kernel.registers_for_stack(&task, vcpu, &mut memory).unwrap_or(*vcpu);
///     let paged = PagedMemory::with_tlb(ram, vcpu.address_space());
///     TaskMemory::new(paged, Some(TaskFiles { kernel, space, task }))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TaskMemory<'k, P, const PAGES: usize = 64> {
    paged: PagedMemory<P, PAGES>,
    files: Option<TaskFiles<'k>>,
    /// Whether the address space is the task's, once that was asked.
    is_own: Option<bool>,
    /// By the page's number, in one place each.
    known: [Option<(u64, Option<PhysAddr>)>; KNOWN],
}

impl<'k, P, const PAGES: usize> TaskMemory<'k, P, PAGES> {
    /// The memory of an address space, and of the files of its task, if these are known.
    #[must_use]
    pub const fn new(paged: PagedMemory<P, PAGES>, files: Option<TaskFiles<'k>>) -> Self {
        Self { paged, files, is_own: None, known: [None; KNOWN] }
    }
}

impl<P: PhysicalMemory, const PAGES: usize> TaskMemory<'_, P, PAGES> {
    /// Reads within a page.
    fn read_in_page(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let absent = match self.paged.read(addr, buf) {
            Err(error @ ReadError::NotResident) => error,
            other => return other,
        };
        let page = self.file_page(addr).ok_or(absent)?;
        let at = page.get() | addr.get() & (PAGE - 1);
        self.paged.physical().read(PhysAddr::new(at), buf)
    }

    /// The page of a file that an access to an absent page would bring.
    fn file_page(&mut self, addr: VirtAddr) -> Option<PhysAddr> {
        let TaskFiles { kernel, space, task } = self.files?;
        let page = page_of(addr);
        let place = usize::try_from(page / PAGE).ok().and_then(|page| page.checked_rem(KNOWN));
        let known = self.known.get_mut(place.unwrap_or(0))?;
        if let Some((_, found)) = known.filter(|(known, _)| *known == page) {
            return found;
        }
        let Some((_, Fault::NotPresent { at, .. })) = self.paged.last_fault() else { return None };
        let mut entry = [0; 8];
        self.paged.physical().read(at, &mut entry).ok()?;
        // An entry with anything in it stands for a page that has been there, which may be another one than the file's.
        let (own, phys) = (*self.paged.space(), self.paged.physical());
        let is_own = self.is_own.get_or_insert_with(|| {
            let mut memory = PagedMemory::<_, PAGES>::with_tlb(phys, space);
            kernel.is_space_of(&task, &own, &mut memory).unwrap_or(false)
        });
        let found = if *is_own && entry == [0; 8] {
            let mut memory = PagedMemory::<_, PAGES>::with_tlb(self.paged.physical(), space);
            kernel.file_page(&task, addr, &mut memory).ok().flatten()
        } else {
            None
        };
        *known = Some((page, found));
        found
    }
}

impl<P: PhysicalMemory, const PAGES: usize> Memory for TaskMemory<'_, P, PAGES> {
    fn read(&mut self, mut addr: VirtAddr, mut buf: &mut [u8]) -> Result<(), ReadError> {
        while !buf.is_empty() {
            let left = PAGE.wrapping_sub(addr.get() & (PAGE - 1));
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let (here, after) = buf.split_at_mut(len);
            self.read_in_page(addr, here)?;
            buf = after;
            if !buf.is_empty() {
                addr = addr.checked_add(left).ok_or(ReadError::Invalid)?;
            }
        }
        Ok(())
    }
}

impl<P: PhysicalMemory, const PAGES: usize> VcpuMemory for TaskMemory<'_, P, PAGES> {
    fn read_as_user(&mut self) {
        self.paged.read_as_user();
    }

    fn last_fault(&self) -> Option<(VirtAddr, Fault)> {
        VcpuMemory::last_fault(&self.paged)
    }
}
