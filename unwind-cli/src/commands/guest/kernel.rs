//! A guest's Linux kernel: its file, and where the guest has it.

use std::cell::{OnceCell, RefCell};

use unwind_core::VirtAddr;
use unwind_guest::orc::{OrcLayout, OrcTable};
use unwind_guest::paging::{PagedMemory, PagingMode};
use unwind_guest::{VcpuRegisters, find_kernel};
use unwind_target::elf::ElfFile;
use unwind_target::elf::error::Part;
use unwind_target::loaded::module::{Module, Modules};

use crate::commands::guest::ram::GuestRam;

/// A kernel with ORC tables.
#[derive(Debug)]
pub(crate) struct GuestKernel {
    sections: OrcSections,
    /// Until it is placed.
    file: RefCell<Option<ElfFile>>,
    placed: OnceCell<Placed>,
}

/// A section: its linked address, and its bytes.
type Linked = (u64, Vec<u8>);

/// What is needed of a kernel's file.
#[derive(Debug)]
pub(crate) struct OrcSections {
    layout: OrcLayout,
    ips: Linked,
    entries: Vec<u8>,
    /// What tells the kernel from others.
    notes: Linked,
}

#[derive(Debug)]
struct Placed {
    moved_by: u64,
    modules: Modules,
}

impl GuestKernel {
    /// A kernel of which it is not known where the guest has it.
    pub(crate) fn new(file: ElfFile, sections: OrcSections) -> Self {
        Self { sections, file: RefCell::new(Some(file)), placed: OnceCell::new() }
    }

    /// Says how far above where it was linked for the guest has it; `load` makes the map of its
    /// code of the file.
    pub(crate) fn place_at(
        &self,
        moved_by: impl FnOnce(&ElfFile) -> u64,
        load: impl FnOnce(ElfFile, u64) -> Modules,
    ) {
        if let Some(file) = self.file.take() {
            let moved_by = moved_by(&file);
            let modules = load(file, moved_by);
            let _ = self.placed.set(Placed { moved_by, modules });
        }
    }

    /// Looks for it in the guest's memory, unless it has been found.
    pub(crate) fn find(
        &self,
        vcpu: &VcpuRegisters,
        ram: &mut GuestRam,
        load: impl FnOnce(ElfFile, u64) -> Modules,
    ) {
        if self.placed.get().is_some() {
            return;
        }
        let (own, other) = vcpu.kernel_address_spaces();
        if !matches!(own.mode(), PagingMode::FourLevel | PagingMode::FiveLevel) {
            return;
        }
        let (linked, bytes) = &self.sections.notes;
        let linked = VirtAddr::new(*linked);
        let found = [Some(own), other].into_iter().flatten().find_map(|space| {
            let mut memory = PagedMemory::<_, 16>::with_tlb(&mut *ram, space);
            find_kernel(linked, bytes, &mut memory)
        });
        if let Some(moved_by) = found {
            self.place_at(|_| moved_by, load);
        }
    }

    /// Whether it was found.
    pub(crate) fn is_placed(&self) -> bool {
        self.placed.get().is_some()
    }

    /// Its table, where it was found.
    pub(crate) fn table(&self) -> Option<OrcTable<'_>> {
        let OrcSections { layout, ips: (linked, ips), entries, .. } = &self.sections;
        let at = VirtAddr::new(linked.wrapping_add(self.placed.get()?.moved_by));
        OrcTable::from_sections(*layout, (ips, at), entries).ok()
    }

    /// Its file, if an address is in its code.
    pub(crate) fn module(&self, addr: u64) -> Option<&Module> {
        self.placed.get()?.modules.find(addr)
    }
}

impl OrcSections {
    /// Those of a file; `None` if it has none, or of an unknown layout.
    pub(crate) fn read(file: &ElfFile) -> Option<Self> {
        let sections = file.sections().ok()?;
        let section = |name: &[u8], part| {
            let section = sections.iter().find(|section| section.name == name)?;
            Some((section.addr, file.section_bytes(part, section).ok()?))
        };
        let ips = section(b".orc_unwind_ip", Part::Orc)?;
        let (_, entries) = section(b".orc_unwind", Part::Orc)?;
        let notes = section(b".notes", Part::Notes)?;
        let layout = match section(b".orc_header", Part::Orc) {
            Some((_, header)) => OrcLayout::of_header(header.first_chunk()?)?,
            None => {
                let entries = entries.chunks_exact(OrcLayout::ENTRY_SIZE);
                OrcLayout::detect(entries.filter_map(|entry| entry.first_chunk().copied()))?
            }
        };
        Some(Self { layout, ips, entries, notes })
    }
}
