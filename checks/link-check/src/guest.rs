//! Stacks of vCPUs.

use core::fmt::Write as _;

use unwind_core::{Empty, VirtAddr};
use unwind_guest::linux::{Btf, GuestLinux, Member, Program, Task, TaskFiles, TaskMemory, cpu_number};
use unwind_guest::orc::{OrcLayout, OrcRows, OrcTable};
use unwind_guest::paging::PagedMemory;
use unwind_guest::{
    GuestRows, GuestStack, GuestWalker, KernelFramePointers, KernelRows, NoKeys, SavedRegisters,
    VcpuRegisters,
};

use crate::pages::Physical;
use crate::{Target, Text, seen};

/// Registers that may be any.
fn vcpu(words: &[u64; 24]) -> VcpuRegisters {
    let [general @ .., rip, rflags, cs, ss, cr0, cr3, cr4, efer] = words;
    let mut vcpu = VcpuRegisters { general: *general, rip: *rip, rflags: *rflags, ..Default::default() };
    for (segment, word) in [(&mut vcpu.cs, *cs), (&mut vcpu.ss, *ss)] {
        segment.base = word;
        segment.dpl = word.to_le_bytes()[0];
        (segment.l, segment.db) = (word & 1 << 9 != 0, word & 1 << 10 != 0);
    }
    (vcpu.cr0, vcpu.cr3, vcpu.cr4, vcpu.efer) = (*cr0, *cr3, *cr4, *efer);
    vcpu
}

fn walk(kernel: impl KernelRows, words: &[u64; 24]) {
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, kernel, Empty, Empty);
    let mut stack = GuestStack::<32>::new();
    walker.walk(&vcpu(words), Physical, &mut stack);
    seen((stack.is_complete(), stack.kernel_fault(), stack.user_fault(), stack.code()));
    seen((stack.user_code(), stack.kernel().map(|trace| trace.end()), rows.stats()));
}

/// A walk by tables of a file, and of guest memory.
#[unsafe(no_mangle)]
pub fn guest_by_orc(words: &[u64; 24], ips: &[u8; 4096], entries: &[u8; 8192], len: (usize, usize, u32)) {
    let (ips_len, entries_len, count) = len;
    let ips = ips.get(..ips_len).unwrap_or_default();
    let entries = entries.get(..entries_len).unwrap_or_default();
    let known = entries.first_chunk().and_then(OrcLayout::of_header);
    let chunks = entries.chunks_exact(6).filter_map(|entry| entry.first_chunk().copied());
    let layout = known.or_else(|| OrcLayout::detect(chunks)).unwrap_or(OrcLayout::Linux6_3);
    let at = VirtAddr::new(words[0]);
    let in_memory = OrcTable::in_memory(layout, at, VirtAddr::new(words[1]), count);
    let table = match OrcTable::from_sections(layout, (ips, at), entries) {
        Ok(table) => table,
        Err(error) => {
            seen(write!(Text(0), "{error}"));
            in_memory
        }
    };
    seen((table.len(), table.is_empty(), table.get(count, &mut Target)));
    match table.find(at, &mut Target) {
        Ok(entry) => seen(entry),
        Err(error) => seen(write!(Text(0), "{error}")),
    };
    walk(OrcRows::new(&[table, in_memory]), words);
}

/// A walk by frame pointers.
#[unsafe(no_mangle)]
pub fn guest_by_frame_pointers(words: &[u64; 24]) {
    walk(KernelFramePointers::new(), words);
}

/// What a kernel has saved.
#[unsafe(no_mangle)]
pub fn guest_saved(saved: &SavedRegisters) {
    seen((saved.addr(), saved.read(&mut Target).is_ok()));
}

/// A walk in the memory of a task, of user code that has entered the kernel from there.
fn guest_task(kernel: &GuestLinux, task: Task, saved: Option<SavedRegisters>, word: u64) {
    let vcpu = vcpu(&[word; 24]);
    let space = vcpu.kernel_address_spaces().0;
    let files = TaskFiles { kernel, space, task };
    let mut of_kernel = PagedMemory::<_, 1>::with_tlb(Physical, space);
    seen(kernel.registers_for_stack(&task, &vcpu, &mut of_kernel));
    seen(kernel.is_stack_of(&task, VirtAddr::new(word), &mut of_kernel));
    seen(kernel.with_page_table_of(&task, &vcpu, &mut of_kernel));
    seen(kernel.is_space_of(&task, &space, &mut of_kernel));
    let paged = PagedMemory::with_tlb(Physical, space);
    let mut memory = TaskMemory::<_, 16>::new(paged, Some(files));
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, KernelFramePointers::new(), Empty, Empty);
    let mut stack = GuestStack::<32>::new();
    stack.clear();
    walker.walk_parts(&vcpu, &mut memory, NoKeys, &mut stack);
    if let Some(saved) = saved {
        walker.walk_entered(&vcpu, saved, &mut memory, NoKeys, &mut stack);
    }
    seen((stack.is_complete(), stack.user_code()));
}

/// What a guest's kernel says of itself.
#[unsafe(no_mangle)]
pub fn guest_linux(addr: u64, number: u32) {
    let addr = VirtAddr::new(addr);
    let linux = match GuestLinux::find(&mut Target) {
        Ok(linux) => linux,
        Err(error) => {
            seen(write!(Text(0), "{error}"));
            return;
        }
    };
    seen((linux.is_in(&mut Target), linux.image().start, linux.page_table(), linux.orc_table()));
    seen((linux.symbols().get(number, &mut Target), linux.symbols().is_empty()));
    seen(linux.find_at(addr, &mut Target));
    seen((linux.is_switching_at(addr), linux.is_entry_at(addr), linux.task_of_area(addr, &mut Target)));
    let tables = linux.orc_table();
    if let Some(rows) = linux.rows(tables.as_slice()) {
        walk(rows, &[number.into(); 24]);
    }
    if let Ok(Some(task)) = linux.task(cpu_number(addr.get(), &mut Target).unwrap_or(number), &mut Target) {
        seen((task.comm().len(), task.pid, linux.file_page(&task, addr, &mut Target)));
        seen(linux.page_table_of(&task, &mut Target));
        let saved = linux.user_registers(&task, addr, &mut Target);
        guest_task(&linux, task, saved.ok().flatten(), addr.get());
    }
    if let Some(mut modules) = linux.modules() {
        while let Ok(Some(module)) = modules.next(&mut Target) {
            seen((module.name().len(), module.text().end, module.orc_table()));
            seen(module.find_at(addr, &mut Target));
        }
    }
    let member = Member { structure: "a", member: "b" };
    seen(Btf::open(addr, &mut Target).and_then(|btf| btf.offsets_of([member], &mut Target)));
}

/// A program below its code.
#[unsafe(no_mangle)]
pub fn guest_program(addr: u64) {
    let addr = VirtAddr::new(addr);
    if let Ok(Some(program)) = Program::find(addr, &mut Target) {
        seen((program.start(), program.bias(), program.text().end, program.is_wide()));
        seen((program.eh_frame_header(), program.sframe(), program.build_id().map(|id| id.as_bytes().len())));
        seen((program.name(&mut Target), program.find_at(addr, &mut Target)));
    }
}
