//! A kernel, found in its guest.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};
use unwind_x86::paging::PhysAddr;

use crate::frame_pointers::{KernelCode, KernelFramePointers};
use crate::linux::btf::Btf;
use crate::linux::error::LinuxError;
use crate::linux::image::{self, Shape};
use crate::linux::kallsyms::Kallsyms;
use crate::linux::layouts::{layouts, page_cache_layout};
use crate::linux::module::{ModuleLayout, ModuleList};
use crate::linux::orc_place;
use crate::linux::page_cache::{PageArray, PageCacheLayout, page_of};
use crate::linux::rows::LinuxRows;
use crate::linux::symbol::Symbol;
use crate::linux::task::{Task, TaskLayout, TaskPlaces};
use crate::linux::window::read;
use crate::orc::{OrcLayout, OrcRows, OrcTable};
use crate::saved_registers::SavedRegisters;

/// How often something may have the shape of a table and turn out to be none.
const TRIES: u32 = 64;
/// The same of types, which are read whole to see.
const BTF_TRIES: u32 = 8;

/// A kernel's image is of whole pages.
const PAGE: u64 = 4096;

/// The symbols that lead to the rest.
const NAMES: [&str; 25] = [
    "__start_orc_header",
    "__start_orc_unwind_ip",
    "__stop_orc_unwind_ip",
    "__start_orc_unwind",
    "__stop_orc_unwind",
    "modules",
    "__per_cpu_offset",
    "pcpu_hot",
    "current_task",
    "_text",
    "_end",
    "init_top_pgt",
    "vmemmap_base",
    "__entry_text_start",
    "__entry_text_end",
    "error_entry",
    "__x64_sys_getpid",
    "vmalloc_to_pfn",
    "__schedule",
    "__indirect_thunk_start",
    "__indirect_thunk_end",
    "return_to_handler",
    "arch_rethook_trampoline",
    "__kretprobe_trampoline",
    "kretprobe_trampoline",
];

/// A Linux kernel that was found in its guest's memory, with what it says of itself: symbols, ORC tables, and where its
/// structures have what. It holds as long as the guest runs this kernel.
///
/// Memory is read on behalf of the kernel, by [its page tables](crate::VcpuRegisters::kernel_address_spaces).
#[derive(Clone, Debug)]
pub struct GuestLinux {
    image: Range<u64>,
    code: KernelCode,
    keeps_frame_pointers: bool,
    symbols: Kallsyms,
    orc: Option<(OrcLayout, OrcTable<'static>)>,
    /// The function that switches tasks.
    switch: Range<u64>,
    page_table: u64,
    modules_at: u64,
    task_places: Option<TaskPlaces>,
    task: Option<TaskLayout>,
    module: Option<ModuleLayout>,
    page_cache: Option<PageCacheLayout>,
}

impl GuestLinux {
    /// Finds the kernel, of which nothing is known.
    ///
    /// # Errors
    ///
    /// [`LinuxError`] if there is none, or none that has symbols.
    pub fn find<M: Memory>(mem: &mut M) -> Result<Self, LinuxError> {
        let image = image::find(mem).ok_or(LinuxError::NoKernel)?;
        let (mut symbols, mut btf, mut tries, mut btf_tries) = (None, None, TRIES, BTF_TRIES);
        image::scan(&image, mem, |shape, mem| {
            match shape {
                Shape::Digits(zero) if symbols.is_none() => {
                    symbols = Kallsyms::find(zero, &image, mem);
                }
                Shape::Btf(start) if btf.is_none() && btf_tries > 0 => {
                    btf_tries = btf_tries.saturating_sub(1);
                    btf = Btf::open(VirtAddr::new(start), mem).ok();
                    // BPF programs in the kernel's image have types, too.
                    btf = btf.filter(|btf| btf.is_of_kernel(mem));
                }
                _ => {}
            }
            tries = tries.saturating_sub(1);
            Ok(tries == 0 || symbols.is_some() && btf.is_some())
        })?;
        let symbols = symbols.ok_or(LinuxError::NoSymbols)?;
        let found = symbols.addresses_of(NAMES, mem)?;
        let [
            header,
            ips,
            ips_end,
            entries,
            entries_end,
            modules_at,
            areas,
            hot,
            current,
            start,
            end,
            page_table,
            pages,
            entry_code,
            entry_code_end,
            exceptions,
            getpid,
            vmalloc_to_pfn,
            schedule,
            thunks,
            thunks_end,
            traced_returns @ ..,
        ] = found;
        // The task is the first thing in the structure of what each CPU needs most, which Linux 6.2 to 6.14 have.
        let current = if hot == 0 { current } else { hot };
        let task_places = match (areas != 0 && current != 0, getpid) {
            (true, _) => Some(TaskPlaces { areas: Some(areas), current }),
            (false, 0) => None,
            (false, _) => TaskPlaces::of_code(getpid, mem),
        };
        let (task, module) = match btf {
            Some(btf) => layouts(&btf, mem)?,
            None => (None, None),
        };
        let pages = match (pages, vmalloc_to_pfn) {
            (0, 0) => None,
            (0, _) => PageArray::of_code(vmalloc_to_pfn, mem),
            _ => Some(PageArray::Variable(pages)),
        };
        let page_cache = match btf.zip(pages) {
            Some((btf, pages)) => page_cache_layout(pages, &btf, mem)?,
            None => None,
        };
        let keeps_frame_pointers = keeps_frame_pointers(exceptions, mem);
        let orc = orc_place::by_symbols(header, ips..ips_end, entries..entries_end, mem);
        let orc = match keeps_frame_pointers {
            false => orc.or_else(|| orc_place::by_shape(&image, mem)),
            true => orc,
        };
        // Assemblers have labels with that name, too.
        let is_end = start < end && end % PAGE == 0;
        let switch = symbols.find_at(VirtAddr::new(schedule), mem)?;
        let switch = switch.filter(|_| schedule != 0);
        let switch = switch.map_or(0..0, |found| schedule..found.end.get());
        let image = if image.contains(&start) && is_end { start..end } else { image };
        let range = |start, end| VirtAddr::new(start)..VirtAddr::new(end);
        let code = KernelCode {
            image: range(image.start, image.end),
            entry: range(entry_code, entry_code_end),
            thunks: range(thunks, thunks_end),
            traced_returns: traced_returns.map(VirtAddr::new),
        };
        Ok(Self {
            image,
            code,
            keeps_frame_pointers,
            symbols,
            orc,
            switch,
            page_table,
            modules_at,
            task_places,
            task,
            module,
            page_cache,
        })
    }

    /// Whether this kernel is the one in that memory: as in an address space of another task, or after a reboot.
    pub fn is_in<M: Memory>(&self, mem: &mut M) -> bool {
        // Under KPTI, tables of user code may have all that the kernel only reads.
        let of_kernel = [
            self.page_table,
            self.modules_at,
            self.task_places.map_or(0, |at| at.areas.unwrap_or(0)),
        ];
        let data = of_kernel.into_iter().find(|at| *at != 0).map(VirtAddr::new);
        self.symbols.is_in(mem) && data.is_none_or(|data| mem.read(data, &mut [0; 8]).is_ok())
    }

    /// The addresses of its code and data.
    #[must_use]
    pub const fn image(&self) -> &Range<u64> {
        &self.image
    }

    /// Where its own root of the page tables is, which has all of the kernel as long as that runs, whatever becomes of
    /// tasks; `None` if it does not tell.
    #[must_use]
    pub fn page_table(&self) -> Option<VirtAddr> {
        (self.page_table != 0).then_some(VirtAddr::new(self.page_table))
    }

    /// Its symbols.
    #[must_use]
    pub const fn symbols(&self) -> &Kallsyms {
        &self.symbols
    }

    /// The symbol that an address of the kernel, without its modules, is of.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn find_at<M: Memory>(
        &self,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Symbol>, LinuxError> {
        match self.image.contains(&addr.get()) {
            true => self.symbols.find_at(addr, mem),
            false => Ok(None),
        }
    }

    /// Its ORC table, in place; `None` if it has none of a known layout.
    #[must_use]
    pub fn orc_table(&self) -> Option<OrcTable<'static>> {
        self.orc.map(|(_, table)| table)
    }

    /// The rows of its code: of ORC tables, its own and those of modules, or of frame pointers if it was built to keep
    /// them and has no tables. `None` if it has neither; its stacks can be guessed, then.
    #[must_use]
    pub const fn rows<'a>(&'a self, tables: &'a [OrcTable<'a>]) -> Option<LinuxRows<'a>> {
        match (tables, self.keeps_frame_pointers) {
            ([_, ..], _) => Some(LinuxRows::Orc(OrcRows::new(tables))),
            ([], true) => {
                let rows = KernelFramePointers::new().with_code(&self.code);
                Some(LinuxRows::FramePointers(rows.with_symbols(&self.symbols)))
            }
            ([], false) => None,
        }
    }

    /// Whether code there is of the kernel's entry, which has user code's registers at first, and at last.
    #[must_use]
    pub fn is_entry_at(&self, addr: VirtAddr) -> bool {
        self.code.entry.contains(&addr)
    }

    /// Whether the frame whose code is at this [lookup address](unwind_core::FramePc::lookup_addr) is of the function that
    /// switches tasks. A CPU with such a frame has the page tables of one task and the stack of another for some
    /// instructions. If the stack pointer is on the stack of a [task](Self::task) that is known,
    /// [`registers_for_stack`](Self::registers_for_stack) has those of the stack; else what is read of user code may be
    /// another task's.
    #[must_use]
    pub fn is_switching_at(&self, addr: VirtAddr) -> bool {
        self.switch.contains(&addr.get())
    }

    /// The task that a CPU runs; `None` if the kernel does not tell where that is: without BTF, or without the names
    /// of variables (`CONFIG_KALLSYMS_ALL`), where [`task_of_area`](Self::task_of_area) is left. The CPU's number is
    /// [`cpu_number`](crate::linux::cpu_number).
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn task<M: Memory>(&self, cpu: u32, mem: &mut M) -> Result<Option<Task>, LinuxError> {
        let Some((places, layout)) = self.task_places.zip(self.task) else { return Ok(None) };
        Task::current(places, layout, cpu, mem)
    }

    /// The same of the CPU whose area for variables of its own begins there: in the kernel the base of its segment GS
    /// is that, in user code the base that it will have in the kernel (`IA32_KERNEL_GS_BASE`).
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn task_of_area<M: Memory>(
        &self,
        area: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Task>, LinuxError> {
        let Some((places, layout)) = self.task_places.zip(self.task) else { return Ok(None) };
        Task::of_area(area.get(), places, layout, mem).map(Some)
    }

    /// Where the root of a task's page tables is, as the kernel itself has it; `None` of a thread of the kernel, which
    /// has no memory of its own, or if the kernel does not tell. Whoever has the control registers of the CPU that runs
    /// it needs no such thing; the dump of a kernel that has crashed lacks them.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn page_table_of<M: Memory>(
        &self,
        task: &Task,
        mem: &mut M,
    ) -> Result<Option<VirtAddr>, LinuxError> {
        let Some(layout) = self.task else { return Ok(None) };
        Ok(task.page_table(layout, mem)?.map(VirtAddr::new))
    }

    /// Where the kernel has saved the registers of a task's user code that has entered it, as long as the stack pointer
    /// `sp` is in the stack that it has for the task, below these. A walk of the kernel's frames leads there by itself:
    /// this is for one that has ended before. `None` of a thread of the kernel, on other stacks, or if the kernel does
    /// not tell.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn user_registers<M: Memory>(
        &self,
        task: &Task,
        sp: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<SavedRegisters>, LinuxError> {
        match (self.task, self.page_table_of(task, mem)?) {
            (Some(layout), Some(_)) => task.user_registers(layout, sp, mem),
            _ => Ok(None),
        }
    }

    /// Whether `sp` is on the stack that the kernel has for a task, as long as that has registers of user code at its end:
    /// not of a thread of the kernel. While the kernel switches tasks, it is the next one's for some instructions.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn is_stack_of<M: Memory>(
        &self,
        task: &Task,
        sp: VirtAddr,
        mem: &mut M,
    ) -> Result<bool, LinuxError> {
        let Some(layout) = self.task else { return Ok(false) };
        Ok(task.user_registers(layout, sp, mem)?.is_some())
    }

    /// Where the page is that an access of a task to this address would bring, if the kernel has it in memory: of a
    /// file that is mapped there. It takes the table's entry for the address to be empty: what has been there once, and
    /// is not now, is not what the file has. Linux 5.10 and later; `None` where it is not known.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn file_page<M: Memory>(
        &self,
        task: &Task,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<PhysAddr>, LinuxError> {
        match &self.page_cache {
            Some(layout) => layout.find(task.at, page_of(addr), mem),
            None => Ok(None),
        }
    }

    /// The modules that are loaded now; `None` if the kernel does not tell where they are: without BTF, or without
    /// the names of variables (`CONFIG_KALLSYMS_ALL`).
    #[must_use]
    pub fn modules(&self) -> Option<ModuleList> {
        let layout = self.module.filter(|_| self.modules_at != 0)?;
        Some(ModuleList::new(self.modules_at, layout, self.orc.map(|(layout, _)| layout)))
    }
}

/// Whether a kernel was built to keep frame pointers: then the code of its exceptions, which has just saved all
/// registers, makes their address plus one the frame pointer.
fn keeps_frame_pointers<M: Memory>(exceptions: u64, mem: &mut M) -> bool {
    /// `lea rbp, [rsp + n]`, but for `n`, a byte: that is odd.
    const LEA: [u8; 4] = [0x48, 0x8d, 0x6c, 0x24];
    let mut code = [0; 128];
    exceptions != 0
        && read(mem, exceptions, &mut code).is_ok()
        && code
            .windows(5)
            .any(|bytes| matches!(bytes.strip_prefix(&LEA), Some([at]) if at & 1 != 0))
}
