//! The walk of a vCPU's stack.

use core::convert::Infallible;
use core::fmt;

use unwind_core::{CacheStats, Empty, KeyedRange, RowCache, RowKeys, RowSource, VirtAddr, Walker};
use unwind_x86::paging::{PagedMemory, PhysicalMemory};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, X86_64, X86_64Regs};

use crate::kernel_code::{AddressHalf, LinuxKernel};
use crate::kernel_rows::{Entry, KernelRows};
use crate::parts::{StackPart, StackParts, VcpuMemory};
use crate::saved_registers::{Interrupted, SavedRegisters};
use crate::stack::GuestStack;
use crate::user_code::UserCode;
use crate::vcpu::{CodeKind, VcpuRegisters, low_half};

/// How many pages are remembered while one stack is walked, 16 bytes each.
const PAGES: usize = 32;

/// Walks the stacks of the vCPUs of one guest, one at a time.
///
/// `K` has the rows of the kernel, `U` those of 64-bit and `I` those of 32-bit user code, or of a 32-bit
/// kernel.
///
/// Where a source has no row, a frame pointer is followed, and the frame that it leads to is marked as one
/// before which callers may be missing, unless the host has [another fallback](Self::fallback). Whoever wants more
/// of a frame takes them by [`StackParts`].
#[derive(Debug)]
pub struct GuestWalker<'r, K, U, I, F = FramePointers, const ROWS: usize = 1024> {
    /// `None`: of a kernel that it does not know.
    kernel: Option<K>,
    user: U,
    narrow: I,
    fallback: F,
    rows: &'r mut GuestRows<ROWS>,
}

/// Rows that are kept from one walk to the next, `ROWS` at most of the kernel and of user code (a power of two): those
/// of the kernel, since all its tasks have them, and those of 64-bit user code that the host has
/// [keys](GuestWalker::walk_by_key) for.
#[derive(Clone, Debug, Default)]
pub struct GuestRows<const ROWS: usize = 1024> {
    kernel: RowCache<ROWS>,
    user: RowCache<ROWS>,
}

impl<const ROWS: usize> GuestRows<ROWS> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { kernel: RowCache::new(), user: RowCache::new() }
    }

    /// Forgets the rows of the kernel, as where other modules have been loaded.
    pub fn clear_kernel(&mut self) {
        self.kernel.clear();
    }

    /// How often a row was kept, and how often it was looked up.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.kernel.stats().with(self.user.stats())
    }
}

impl<'r, K, U, I, const ROWS: usize> GuestWalker<'r, K, U, I, FramePointers, ROWS>
where
    K: KernelRows,
    U: RowSource<X86_64, Error: fmt::Display>,
    I: RowSource<Ia32, Error: fmt::Display>,
{
    /// A walker with these sources; [`Empty`](unwind_core::Empty) is one without rows.
    #[must_use]
    pub const fn new(rows: &'r mut GuestRows<ROWS>, kernel: K, user: U, narrow: I) -> Self {
        Self::of_any_kernel(rows, Some(kernel), user, narrow)
    }

    /// The same of a guest whose kernel may have no rows of its own: 64-bit code of it is walked by those of user
    /// code, then, and what has entered it is not known.
    #[must_use]
    pub const fn of_any_kernel(
        rows: &'r mut GuestRows<ROWS>,
        kernel: Option<K>,
        user: U,
        narrow: I,
    ) -> Self {
        Self { kernel, user, narrow, fallback: FramePointers, rows }
    }
}

impl<'r, K, U, I, F, const ROWS: usize> GuestWalker<'r, K, U, I, F, ROWS>
where
    K: KernelRows,
    U: RowSource<X86_64, Error: fmt::Display>,
    I: RowSource<Ia32, Error: fmt::Display>,
    F: RowSource<LinuxKernel, Error = Infallible>
        + RowSource<X86_64, Error = Infallible>
        + RowSource<Ia32, Error = Infallible>
        + Copy,
{
    /// Continues by this where a source has no row, as [`Walker::fallback`] says.
    #[must_use]
    pub fn fallback<G>(self, fallback: G) -> GuestWalker<'r, K, U, I, G, ROWS> {
        let Self { kernel, user, narrow, rows, .. } = self;
        GuestWalker { kernel, user, narrow, fallback, rows }
    }

    /// Walks the stack of what a vCPU executes into `stack`, which is emptied first. It must not run
    /// meanwhile, nor may who else changes its page tables or its stack.
    pub fn walk<P: PhysicalMemory, const N: usize>(
        &mut self,
        vcpu: &VcpuRegisters,
        physical: P,
        stack: &mut GuestStack<N>,
    ) {
        self.walk_by_key(vcpu, physical, NoKeys, stack);
    }

    /// The same where the host knows which tables the user code of the vCPU's address space has: their rows are
    /// kept for all address spaces that have these tables. `keys` is of this address space as it is now.
    ///
    /// A number of a table must stand for the same bytes always: of a program, that is its build, not its
    /// path and not its process.
    pub fn walk_by_key<P: PhysicalMemory, Q: RowKeys, const N: usize>(
        &mut self,
        vcpu: &VcpuRegisters,
        physical: P,
        keys: Q,
        stack: &mut GuestStack<N>,
    ) {
        stack.clear();
        let mut memory = PagedMemory::<P, PAGES>::with_tlb(physical, vcpu.address_space());
        self.walk_parts(vcpu, &mut memory, keys, stack);
    }

    /// The same for a host that takes the frames itself, and has the memory that the code reads which the vCPU
    /// executes.
    pub fn walk_parts<M: VcpuMemory, Q: RowKeys, T: StackParts>(
        &mut self,
        vcpu: &VcpuRegisters,
        memory: &mut M,
        keys: Q,
        parts: &mut T,
    ) {
        let (cpu, code) = (vcpu.x86_64(), vcpu.code());
        let wide = vcpu.x86_64_registers();
        match code {
            CodeKind::Sixteen => {
                let arch = Ia32::with_bases(low_half(vcpu.cs.base), low_half(vcpu.ss.base));
                let walker = Walker::new(arch, Empty).fallback(Empty);
                let regs = vcpu.ia32_registers();
                if vcpu.is_user() {
                    parts.user_code(UserCode::Running);
                    parts.walk(StackPart::User(code), walker, regs, memory);
                    return;
                }
                parts.walk(StackPart::Kernel(code), walker, regs, memory);
            }
            _ if vcpu.is_user() => {
                parts.user_code(UserCode::Running);
                let regs = (wide, vcpu.ia32_registers());
                return self.walk_user((cpu, code), regs, keys, memory, parts);
            }
            CodeKind::X86_64 => match &mut self.kernel {
                Some(kernel) => {
                    kernel.begin();
                    let walker = Walker::new(LinuxKernel::new(cpu), &mut *kernel);
                    let walker = walker.cache(&mut self.rows.kernel).fallback(self.fallback);
                    let walker = walker.return_addresses(AddressHalf::Kernel);
                    if parts.walk(StackPart::Kernel(code), walker, wide, memory) {
                        let entry = kernel.entry();
                        return self.walk_entry(cpu, entry, keys, memory, parts);
                    }
                }
                None => {
                    let of = (cpu.without_red_zone(), AddressHalf::Kernel);
                    self.walk_wide(StackPart::Kernel(code), of, wide, keys, memory, parts);
                }
            },
            CodeKind::Ia32 { .. } => {
                let part = StackPart::Kernel(code);
                self.walk_narrow(part, code, vcpu.ia32_registers(), memory, parts);
            }
        }
        parts.user_code(UserCode::Unknown);
    }

    /// Walks the user code that has entered the kernel from where its registers are saved, as
    /// [`GuestLinux::user_registers`](crate::linux::GuestLinux::user_registers) tells: after
    /// [`walk_parts`](Self::walk_parts), where the kernel's part did not lead there.
    pub fn walk_entered<M: VcpuMemory, Q: RowKeys, T: StackParts>(
        &mut self,
        vcpu: &VcpuRegisters,
        saved: SavedRegisters,
        memory: &mut M,
        keys: Q,
        parts: &mut T,
    ) {
        self.walk_entry(vcpu.x86_64(), Entry::User(saved), keys, memory, parts);
    }

    /// Walks the user code that has entered the kernel, if some has.
    fn walk_entry<M: VcpuMemory>(
        &mut self,
        cpu: X86_64,
        entry: Entry,
        keys: impl RowKeys,
        memory: &mut M,
        parts: &mut impl StackParts,
    ) {
        match entry.user_code(memory) {
            Ok((code, Interrupted { x86_64, ia32, .. })) => {
                parts.user_code(UserCode::Entered);
                self.walk_user((cpu, code), (x86_64, ia32), keys, memory, parts);
            }
            Err(why) => parts.user_code(why),
        }
    }

    fn walk_user<M: VcpuMemory>(
        &mut self,
        (cpu, code): (X86_64, CodeKind),
        (wide, narrow): (X86_64Regs, Ia32Regs),
        keys: impl RowKeys,
        memory: &mut M,
        parts: &mut impl StackParts,
    ) {
        let part = StackPart::User(code);
        match code {
            CodeKind::X86_64 => {
                self.walk_wide(part, (cpu, AddressHalf::User), wide, keys, memory, parts);
            }
            _ => self.walk_narrow(part, code, narrow, memory, parts),
        }
    }

    /// Walks by the rows of 64-bit user code.
    fn walk_wide<M: VcpuMemory>(
        &mut self,
        part: StackPart,
        (cpu, half): (X86_64, AddressHalf),
        regs: X86_64Regs,
        keys: impl RowKeys,
        memory: &mut M,
        parts: &mut impl StackParts,
    ) {
        let walker = Walker::new(cpu, &mut self.user).cache_by_key(&mut self.rows.user, keys);
        let walker = walker.fallback(self.fallback).return_addresses(half);
        parts.walk(part, walker, regs, memory);
    }

    fn walk_narrow<M: VcpuMemory>(
        &mut self,
        part: StackPart,
        code: CodeKind,
        regs: Ia32Regs,
        memory: &mut M,
        parts: &mut impl StackParts,
    ) {
        let CodeKind::Ia32 { code_base, stack_base } = code else { return };
        let arch = Ia32::with_bases(code_base, stack_base);
        let walker = Walker::new(arch, &mut self.narrow).fallback(self.fallback);
        parts.walk(part, walker, regs, memory);
    }
}

/// No table of user code is known by a number that is the same in all address spaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKeys;

impl RowKeys for NoKeys {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        None
    }
}
