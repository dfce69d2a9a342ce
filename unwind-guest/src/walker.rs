//! The walk of a vCPU's stack.

use unwind_core::{CacheStats, End, KeyedRange, RowCache, RowKeys, RowSource, VirtAddr, Walker};
use unwind_x86::paging::{PagedMemory, PhysicalMemory};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, X86_64, X86_64Regs};

use crate::kernel_code::{AddressHalf, LinuxKernel};
use crate::kernel_rows::KernelRows;
use crate::saved_registers::Interrupted;
use crate::stack::{GuestStack, Part, UserCode};
use crate::vcpu::{CodeKind, VcpuRegisters};

/// How many pages are remembered while one stack is walked, 16 bytes each.
const PAGES: usize = 32;

/// Walks the stacks of the vCPUs of one guest, one at a time.
///
/// `K` has the rows of the kernel, `U` those of 64-bit and `I` those of 32-bit user code, or of a 32-bit
/// kernel. Rows are kept, `ROWS` at most of each (a power of two): those of the kernel, since all its tasks have them, and
/// those of 64-bit user code that the host has [keys](Self::walk_by_key) for.
///
/// Where a source has no row, a frame pointer is followed, and the frame that it leads to is marked as one
/// before which callers may be missing. Whoever wants another fallback, or more of a frame, has the parts
/// of this: [`VcpuRegisters`], [`LinuxKernel`], [`AddressHalf`] and [`KernelRows`] for a
/// [`Walker`].
#[derive(Clone, Debug)]
pub struct GuestWalker<K, U, I, const ROWS: usize = 1024> {
    kernel: K,
    user: U,
    narrow: I,
    rows: RowCache<ROWS>,
    user_rows: RowCache<ROWS>,
}

impl<K, U, I, const ROWS: usize> GuestWalker<K, U, I, ROWS>
where
    K: KernelRows,
    U: RowSource<X86_64>,
    I: RowSource<Ia32>,
{
    /// A walker with these sources; [`Empty`](unwind_core::Empty) is one without rows.
    #[must_use]
    pub fn new(kernel: K, user: U, narrow: I) -> Self {
        Self { kernel, user, narrow, rows: RowCache::new(), user_rows: RowCache::new() }
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
        self.kernel.begin();
        let mut memory = PagedMemory::<P, PAGES>::with_tlb(physical, vcpu.address_space());
        let code = vcpu.code();
        match code {
            CodeKind::Sixteen => {}
            _ if vcpu.is_user() => {
                stack.user_code = UserCode::Running;
                let regs = (vcpu.x86_64_registers(), vcpu.ia32_registers());
                let part = &mut stack.user;
                self.walk_user((vcpu.x86_64(), code), regs, keys, &mut memory, part);
            }
            CodeKind::X86_64 => {
                self.walk_kernel(vcpu, &mut memory, &mut stack.kernel);
                if ends(&stack.kernel) {
                    let part = &mut stack.user;
                    stack.user_code = self.walk_entered(vcpu, keys, &mut memory, part);
                }
            }
            CodeKind::Ia32 { .. } => {
                let regs = vcpu.ia32_registers();
                self.walk_narrow(code, regs, &mut memory, &mut stack.kernel);
            }
        }
    }

    /// How often a row was kept, and how often it was looked up.
    #[must_use]
    pub fn rows(&self) -> CacheStats {
        self.rows.stats().with(self.user_rows.stats())
    }

    fn walk_kernel<P: PhysicalMemory, const N: usize>(
        &mut self,
        vcpu: &VcpuRegisters,
        memory: &mut PagedMemory<P, PAGES>,
        part: &mut Part<N>,
    ) {
        part.code = Some(CodeKind::X86_64);
        let walker = Walker::new(LinuxKernel::new(vcpu.x86_64()), &mut self.kernel);
        let walker = walker.cache(&mut self.rows).fallback(FramePointers);
        let mut walker = walker.return_addresses(AddressHalf::Kernel);
        walker.trace(vcpu.x86_64_registers(), memory, &mut part.trace);
        part.keep_fault(memory.last_fault());
    }

    /// Walks the user code that has entered the kernel.
    fn walk_entered<P: PhysicalMemory, const N: usize>(
        &mut self,
        vcpu: &VcpuRegisters,
        keys: impl RowKeys,
        memory: &mut PagedMemory<P, PAGES>,
        part: &mut Part<N>,
    ) -> UserCode {
        match self.kernel.entry().user_code(memory) {
            Ok((code, Interrupted { x86_64, ia32, .. })) => {
                self.walk_user((vcpu.x86_64(), code), (x86_64, ia32), keys, memory, part);
                UserCode::Entered
            }
            Err(why) => why,
        }
    }

    fn walk_user<P: PhysicalMemory, const N: usize>(
        &mut self,
        (cpu, code): (X86_64, CodeKind),
        (wide, narrow): (X86_64Regs, Ia32Regs),
        keys: impl RowKeys,
        memory: &mut PagedMemory<P, PAGES>,
        part: &mut Part<N>,
    ) {
        if code != CodeKind::X86_64 {
            return self.walk_narrow(code, narrow, memory, part);
        }
        part.code = Some(code);
        let walker = Walker::new(cpu, &mut self.user).cache_by_key(&mut self.user_rows, keys);
        let walker = walker.fallback(FramePointers);
        let mut walker = walker.return_addresses(AddressHalf::User);
        walker.trace(wide, memory, &mut part.trace);
        part.keep_fault(memory.last_fault());
    }

    fn walk_narrow<P: PhysicalMemory, const N: usize>(
        &mut self,
        code: CodeKind,
        regs: Ia32Regs,
        memory: &mut PagedMemory<P, PAGES>,
        part: &mut Part<N>,
    ) {
        let CodeKind::Ia32 { code_base, stack_base } = code else { return };
        part.code = Some(code);
        let arch = Ia32::with_bases(code_base, stack_base);
        let mut walker = Walker::new(arch, &mut self.narrow).fallback(FramePointers);
        walker.trace(regs, memory, &mut part.trace);
        part.keep_fault(memory.last_fault());
    }
}

/// No table of user code is known.
struct NoKeys;

impl RowKeys for NoKeys {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        None
    }
}

/// Whether the kernel's part has come to its outermost frame by its row: only then what the source has told last is
/// of that frame. A walk that has met a zero asks of others, too.
fn ends<const N: usize>(kernel: &Part<N>) -> bool {
    kernel.trace.end() == Some(End::Outermost)
}
