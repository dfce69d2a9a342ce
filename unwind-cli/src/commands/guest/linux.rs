//! The Linux kernel that a guest runs, found in its memory.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use unwind_core::{Registers as _, VirtAddr};
use unwind_guest::linux::{GuestLinux, LinuxError, Module, Symbol, Task, cpu_number};
use unwind_guest::orc::OrcTable;
use unwind_guest::paging::{AddressSpace, PagedMemory, PagingMode};
use unwind_guest::{SavedRegisters, VcpuRegisters};
use unwind_target::Untrusted;

use crate::commands::guest::ram::GuestRam;
use crate::commands::guest::registers::{CpuPlace, VcpuState};

/// What an address is called by what the guest itself has in memory.
#[derive(Clone, Debug)]
pub(crate) struct FoundName {
    pub(crate) object: Untrusted,
    /// How far above where it was linked for the object is, if that is known.
    pub(crate) bias: Option<u64>,
    /// The object's code, where in its file that is, and which build of it this is.
    pub(crate) text: Range<u64>,
    pub(crate) offset: u64,
    pub(crate) build_id: Option<Box<[u8]>>,
    /// The function, and where it is.
    pub(crate) function: Option<(Untrusted, Range<u64>)>,
}

/// How long after a search that found nothing the next one is, and how many times as long as that took: the guest may
/// stand for it.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

/// Of how many CPUs of a kernel that has crashed one is looked for by what it ran.
const CPUS_LIMIT: u32 = 1 << 12;

/// Of how many CPUs it is kept where they have their variables.
const AREAS_LIMIT: usize = 1 << 12;

/// The most addresses of which names are kept.
const NAMES_LIMIT: usize = 1 << 16;

/// The kernel, as far as it was found.
#[derive(Debug, Default)]
pub(crate) struct Linux {
    found: Option<Found>,
    /// Why not, and when to try again.
    missing: Option<(LinuxError, Instant)>,
}

#[derive(Debug)]
struct Found {
    kernel: Rc<GuestLinux>,
    /// That has the kernel whatever a vCPU runs, if there is one that is known to.
    space: Option<AddressSpace>,
    /// `None` until they are asked for.
    modules: Option<Vec<Module>>,
    tables: Vec<OrcTable<'static>>,
    /// Of the kernel without its modules, which stay where they are.
    names: HashMap<u64, Option<Symbol>>,
    /// Where each CPU has its variables, by its table of segments or, where that is not told, by itself, as far as that was
    /// seen: in user code and at the kernel's entry its registers do not tell.
    areas: HashMap<u64, u64>,
}

/// A task that a vCPU runs, and the stack that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskStack {
    /// The vCPU's, with the page tables by which the stack is to be read: its own may not be known, or be the next task's
    /// already.
    pub(crate) registers: VcpuRegisters,
    /// Where the registers of the user code are that has entered the kernel, if the kernel's frames do not lead there.
    pub(crate) saved: Option<SavedRegisters>,
    /// Whether the stack is the task's own: for some instructions it is the next one's.
    pub(crate) is_own: bool,
    /// Whether the task has no memory any more: of one on the stack of an interrupt it is not known whose page tables the
    /// CPU has.
    pub(crate) has_ended: bool,
}

type KernelMemory<'r> = PagedMemory<&'r mut GuestRam, 64>;

impl Linux {
    /// Finds the kernel, unless the one that was found is still there.
    pub(crate) fn find(&mut self, vcpu: &VcpuRegisters, ram: &mut GuestRam) {
        let mode = vcpu.address_space().mode();
        if !matches!(mode, PagingMode::FourLevel | PagingMode::FiveLevel) {
            return;
        }
        if self.space(vcpu, ram).is_some() {
            return;
        }
        self.found = None;
        if self.missing.is_some_and(|(_, again)| Instant::now() < again) {
            return;
        }
        self.missing = None;
        let started = Instant::now();
        for space in spaces(vcpu) {
            let mut memory = KernelMemory::with_tlb(&mut *ram, space);
            match GuestLinux::find(&mut memory) {
                Ok(kernel) => {
                    let own = kernel.page_table().and_then(|root| {
                        let own = with_table(&kernel, root, vcpu, &mut memory)?;
                        Some(own.kernel_address_spaces().0)
                    });
                    let (modules, tables, names, areas) = Default::default();
                    let kernel = Rc::new(kernel);
                    self.found = Some(Found { kernel, space: own, modules, tables, names, areas });
                    self.missing = None;
                    return;
                }
                Err(error) => {
                    // What is said of the table that has more is said.
                    self.missing.get_or_insert((error, started));
                }
            }
        }
        if let Some((_, again)) = &mut self.missing {
            let pause = started.elapsed().saturating_mul(SHARE).max(PAUSE);
            *again = Instant::now().checked_add(pause).unwrap_or(started);
        }
    }

    /// Why no kernel was found.
    pub(crate) fn missing(&self) -> Option<LinuxError> {
        self.missing.map(|(error, _)| error)
    }

    /// An address space that has the kernel that was found.
    pub(crate) fn space(&self, vcpu: &VcpuRegisters, ram: &mut GuestRam) -> Option<AddressSpace> {
        let found = self.found.as_ref()?;
        // Of a kernel that ran before, memory may have everything but what the CPU executes now.
        let code = VirtAddr::new(found.kernel.image().start);
        let mut place =
            |space: AddressSpace| Some(space.translate(&mut *ram, code).ok()?.locate(code));
        let own = found.space.filter(|space| {
            let there = place(*space);
            there.is_some() && spaces(vcpu).any(|space| place(space) == there)
        });
        own.into_iter().chain(spaces(vcpu)).find(|space| {
            let mut memory = KernelMemory::with_tlb(&mut *ram, *space);
            found.kernel.is_in(&mut memory)
        })
    }

    /// The address space of a vCPU that runs the kernel: under KPTI, the table that user code has is still in use in the
    /// first instructions.
    pub(crate) fn space_of_kernel_code(
        &self,
        vcpu: &VcpuRegisters,
        ram: &mut GuestRam,
    ) -> AddressSpace {
        let own = vcpu.address_space();
        let Some(found) = &self.found else { return own };
        let has_kernel = |space: &AddressSpace| {
            found.kernel.is_in(&mut KernelMemory::with_tlb(&mut *ram, *space))
        };
        let (first, second) = vcpu.kernel_address_spaces();
        [Some(first), second].into_iter().flatten().find(has_kernel).unwrap_or(own)
    }

    /// Reads the list of modules; says whether it is another one than before, or of another kernel.
    pub(crate) fn read_modules(&mut self, space: AddressSpace, ram: &mut GuestRam) -> bool {
        let Some(found) = &mut self.found else { return false };
        let mut modules = Vec::new();
        let mut memory = KernelMemory::with_tlb(ram, space);
        if let Some(mut list) = found.kernel.modules() {
            loop {
                match list.next(&mut memory) {
                    Ok(Some(module)) => modules.push(module),
                    Ok(None) => break,
                    // The others are known all the same.
                    Err(_) => {}
                }
            }
        }
        let of_modules = modules.iter().filter_map(Module::orc_table);
        found.tables = found.kernel.orc_table().into_iter().chain(of_modules).collect();
        let is_other = found.modules.as_ref() != Some(&modules);
        found.modules = Some(modules);
        is_other
    }

    /// The ORC tables, the kernel's first; none if that has none.
    pub(crate) fn tables(&self) -> &[OrcTable<'static>] {
        self.found.as_ref().map_or(&[], |found| &found.tables)
    }

    /// What a vCPU runs.
    pub(crate) fn task(
        &mut self,
        vcpu: &VcpuState,
        space: AddressSpace,
        ram: &mut GuestRam,
    ) -> Option<Task> {
        let found = self.found.as_mut()?;
        let mut memory = KernelMemory::with_tlb(ram, space);
        let registers = &vcpu.registers;
        // At its entry it has user code's base, which may be any.
        let is_entry = found.kernel.is_entry_at(VirtAddr::new(registers.rip));
        let is_kernels = |base: u64| base >> 63 != 0;
        match vcpu.place {
            CpuPlace::Segments { gdt, gs } => {
                let cpu = cpu_number(gdt, &mut memory).ok()?;
                let is_known = !registers.is_user() && !is_entry && is_kernels(gs);
                if is_known && found.areas.len() < AREAS_LIMIT {
                    found.areas.insert(gdt, gs);
                }
                let area = found.areas.get(&gdt).map(|area| VirtAddr::new(*area));
                let task = found.kernel.task(cpu, &mut memory).ok()?;
                task.or_else(|| found.kernel.task_of_area(area?, &mut memory).ok()?)
            }
            CpuPlace::Bases { used, other } => {
                let told = match (registers.is_user(), is_entry) {
                    (true, _) => Some(other),
                    (false, false) => Some(used),
                    (false, true) => None,
                };
                let told = told.filter(|area| is_kernels(*area));
                if let Some(area) = told
                    && found.areas.len() < AREAS_LIMIT
                {
                    found.areas.insert(area, area);
                }
                let of_entry = || {
                    let both = [used, other];
                    let known = both.into_iter().find(|base| found.areas.contains_key(base));
                    let mut kernels = both.into_iter().filter(|base| is_kernels(*base));
                    known.or_else(|| kernels.next().filter(|_| kernels.next().is_none()))
                };
                let area = told.or_else(of_entry)?;
                found.kernel.task_of_area(VirtAddr::new(area), &mut memory).ok()?
            }
            CpuPlace::Crashed { cpu, tid } => {
                let mut task_of = |cpu| {
                    let task = found.kernel.task(cpu, &mut memory).ok().flatten();
                    task.filter(|task| task.tid == tid)
                };
                // CPUs that were off have no note. Each has an idle thread, with one number for all.
                let others = if tid == 0 { 0..0 } else { 0..CPUS_LIMIT };
                task_of(cpu).or_else(|| others.into_iter().find_map(task_of))
            }
        }
    }

    /// What the kernel tells of a task that a vCPU runs, and of the stack that it has.
    pub(crate) fn stack_of(
        &self,
        task: &Task,
        vcpu: &VcpuState,
        space: AddressSpace,
        ram: &mut GuestRam,
    ) -> Option<TaskStack> {
        let kernel = &self.found.as_ref()?.kernel;
        let memory = &mut KernelMemory::with_tlb(ram, space);
        let registers = match vcpu.place {
            CpuPlace::Crashed { .. } => {
                kernel.with_page_table_of(task, &vcpu.registers, memory).ok().flatten()
            }
            _ => kernel.registers_for_stack(task, &vcpu.registers, memory).ok(),
        };
        let registers = registers.unwrap_or(vcpu.registers);
        if registers.is_user() {
            return Some(TaskStack { registers, saved: None, is_own: true, has_ended: false });
        }
        let sp = VirtAddr::new(registers.x86_64_registers().sp());
        let saved = kernel.user_registers(task, sp, memory).ok().flatten();
        let own = registers.address_space();
        // One that ends has given its address space back before its stack.
        let is_own = kernel.is_space_of(task, &own, memory) == Ok(true)
            || kernel.is_stack_of(task, sp, memory) == Ok(true);
        let has_ended = kernel.page_table_of(task, memory) == Ok(None);
        Some(TaskStack { registers, saved, is_own, has_ended })
    }

    /// The kernel that was found.
    pub(crate) fn kernel(&self) -> Option<Rc<GuestLinux>> {
        self.found.as_ref().map(|found| Rc::clone(&found.kernel))
    }

    /// What an address of the kernel is called.
    pub(crate) fn name(
        &mut self,
        addr: u64,
        space: AddressSpace,
        ram: &mut GuestRam,
    ) -> Option<FoundName> {
        let found = self.found.as_mut()?;
        let mut memory = KernelMemory::with_tlb(ram, space);
        let at = VirtAddr::new(addr);
        let (object, text, symbol) = if found.kernel.image().contains(&addr) {
            if found.names.len() > NAMES_LIMIT {
                found.names.clear();
            }
            let kernel = &found.kernel;
            let look_up = || kernel.find_at(at, &mut memory).ok().flatten();
            let symbol = *found.names.entry(addr).or_insert_with(look_up);
            (Untrusted::from("[kernel]"), kernel.image().clone(), symbol)
        } else {
            let mut modules = found.modules.iter().flatten();
            let module = modules.find(|module| module.text().contains(&addr))?;
            let symbol = module.find_at(at, &mut memory).ok().flatten();
            let name = [b"[".as_slice(), module.name(), b"]"].concat();
            (Untrusted::from(name), module.text().clone(), symbol)
        };
        let function = symbol.map(|symbol| {
            let range = symbol.start.get()..symbol.end.get();
            (Untrusted::from(symbol.name.as_bytes().to_vec()), range)
        });
        let (offset, build_id) = (text.start, None);
        Some(FoundName { object, bias: None, text, offset, build_id, function })
    }
}

/// The registers of a vCPU with a page table whose root the kernel has there, if that has the kernel, too.
fn with_table(
    kernel: &GuestLinux,
    root: VirtAddr,
    vcpu: &VcpuRegisters,
    memory: &mut KernelMemory<'_>,
) -> Option<VcpuRegisters> {
    let space = *memory.space();
    let page = space.translate(memory.physical(), root).ok()?;
    let own = VcpuRegisters { cr3: page.locate(root).get(), ..*vcpu };
    memory.switch(own.kernel_address_spaces().0);
    kernel.is_in(memory).then_some(own)
}

/// The address spaces that may have all of the kernel, that which has it under KPTI first.
fn spaces(vcpu: &VcpuRegisters) -> impl Iterator<Item = AddressSpace> + use<> {
    let (own, other) = vcpu.kernel_address_spaces();
    other.into_iter().chain([own])
}
