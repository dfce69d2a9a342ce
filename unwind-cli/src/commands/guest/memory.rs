//! The guest's memory as code of it would read it, and what an access would bring.

use std::collections::HashMap;
use std::rc::Rc;

use unwind_core::{Memory, ReadError, VirtAddr};
use unwind_guest::VcpuMemory;
use unwind_guest::linux::{GuestLinux, Task};
use unwind_guest::paging::{AddressSpace, Fault, PagedMemory, PhysAddr, PhysicalMemory as _};

use crate::commands::guest::ram::GuestRam;

/// How many pages are remembered while one stack is walked: more than the
/// usual stack has.
const PAGES: usize = 64;

pub(crate) type GuestMemory<'r> = PagedMemory<&'r mut GuestRam, PAGES>;

/// An address space, with the pages of files that its task has mapped and not touched.
pub(crate) struct StackMemory<'r> {
    paged: GuestMemory<'r>,
    files: Option<FilePages>,
}

/// Where the pages of files are found.
pub(crate) struct FilePages {
    kernel: Rc<GuestLinux>,
    space: AddressSpace,
    task: Task,
    known: HashMap<u64, Option<PhysAddr>>,
}

const PAGE: u64 = 4096;

impl FilePages {
    /// Of a task, by a kernel that is in `space`.
    pub(crate) fn new(kernel: Rc<GuestLinux>, space: AddressSpace, task: Task) -> Self {
        Self { kernel, space, task, known: HashMap::new() }
    }
}

impl<'r> StackMemory<'r> {
    pub(crate) const fn new(paged: GuestMemory<'r>, files: Option<FilePages>) -> Self {
        Self { paged, files }
    }

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
        let files = self.files.as_mut()?;
        let page = addr.get() / PAGE;
        if let Some(known) = files.known.get(&page) {
            return *known;
        }
        let Some((_, Fault::NotPresent { at, .. })) = self.paged.last_fault() else { return None };
        let ram = &mut **self.paged.physical();
        let mut entry = [0; 8];
        ram.read(at, &mut entry).ok()?;
        // An entry with anything in it stands for a page that has been there, which may be another one than the file's.
        let found = if entry == [0; 8] {
            let mut memory = GuestMemory::with_tlb(ram, files.space);
            files.kernel.file_page(&files.task, addr, &mut memory).ok().flatten()
        } else {
            None
        };
        files.known.insert(page, found);
        found
    }
}

impl Memory for StackMemory<'_> {
    fn read(&mut self, mut addr: VirtAddr, mut buf: &mut [u8]) -> Result<(), ReadError> {
        while !buf.is_empty() {
            let left = PAGE.wrapping_sub(addr.get() & (PAGE - 1));
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let (here, after) = buf.split_at_mut(len);
            self.read_in_page(addr, here)?;
            buf = after;
            addr = addr.wrapping_add(left);
        }
        Ok(())
    }
}

impl VcpuMemory for StackMemory<'_> {
    fn read_as_user(&mut self) {
        self.paged.read_as_user();
    }

    fn last_fault(&self) -> Option<(VirtAddr, Fault)> {
        self.paged.last_fault()
    }
}
