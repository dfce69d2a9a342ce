//! What a CPU runs.

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::window::{read, read_u32, read_u64};
use crate::saved_registers::SavedRegisters;

/// The task that a CPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Task {
    /// Where its structure is.
    pub(crate) at: u64,
    comm: [u8; 16],
    /// The process: the thread that it began with. Zero of the thread that a CPU has for when it is idle.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// Where a task's structure has that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskLayout {
    pub(crate) comm: u32,
    /// Linux's names: the thread's number is the `pid`, its process's the `tgid`.
    pub(crate) pid: u32,
    pub(crate) tgid: u32,
    /// Its address space, and where that has the root of its page tables.
    pub(crate) page_table: Option<[u32; 2]>,
    /// The lowest address of the stack that the kernel has for it.
    pub(crate) stack: Option<u32>,
}

/// From where on the stack pointer may be in a task's stack, and where the registers of user code may end, both above its
/// lowest address. Stacks are of 16 KiB, or of 32 in kernels with KASAN; kernels that know FRED leave two words.
const ENDS: [(u64, u64); 4] =
    [(0, 0x4000), (0, 0x4000 - 16), (0x4000, 0x8000), (0x4000, 0x8000 - 16)];

/// The segment whose limit is the CPU's number, by which user code asks for it, and the bits of that.
const CPU_SEGMENT: u64 = 15;
const CPU_BITS: u32 = 0xfff;

impl Task {
    /// The name of the thread (`comm`): the guest's, any bytes.
    #[must_use]
    pub fn comm(&self) -> &[u8] {
        let end = self.comm.iter().position(|byte| *byte == 0).unwrap_or(self.comm.len());
        self.comm.get(..end).unwrap_or_default()
    }
}

/// Where the areas of the CPUs begin, and where in each the task is that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskPlaces {
    /// `None` of a kernel that does not name its variables.
    pub(crate) areas: Option<u64>,
    pub(crate) current: u64,
}

impl TaskPlaces {
    /// Those that the code of the system call `getpid` has, which begins with the task that runs. `None` if it loads
    /// nothing of the CPU's area.
    pub(crate) fn of_code<M: Memory>(getpid: u64, mem: &mut M) -> Option<Self> {
        let mut code = [0; 64];
        read(mem, getpid, &mut code).ok()?;
        // mov r64, gs:[a], of which the address is whole or, since Linux 6.15, above the next instruction.
        let current = (0_u64..).zip(code.windows(9)).find_map(|(at, bytes)| {
            let &[0x65, 0x48, 0x8b, register, a, b, c, d, e] = bytes else { return None };
            match (register & 0xc7, a) {
                (4, 0x25) => {
                    Some(0_u64.wrapping_add_signed(i32::from_le_bytes([b, c, d, e]).into()))
                }
                (5, _) => {
                    let above = i64::from(i32::from_le_bytes([a, b, c, d]));
                    Some(getpid.wrapping_add(at).wrapping_add(8).wrapping_add_signed(above))
                }
                _ => None,
            }
        })?;
        Some(Self { areas: None, current })
    }
}

/// The number that a Linux kernel has given to a CPU, by the table of segments that its register GDTR points to.
///
/// # Errors
///
/// [`LinuxError::Unreadable`].
pub fn cpu_number<M: Memory>(gdt: u64, mem: &mut M) -> Result<u32, LinuxError> {
    let mut descriptor = [0; 8];
    read(mem, gdt.wrapping_add(CPU_SEGMENT * 8), &mut descriptor)?;
    let [low, high, ..] = descriptor;
    Ok(u32::from(u16::from_le_bytes([low, high])) & CPU_BITS)
}

impl Task {
    /// The task that a CPU runs; `None` if it is not known where the areas of the CPUs are.
    pub(crate) fn current<M: Memory>(
        places: TaskPlaces,
        layout: TaskLayout,
        cpu: u32,
        mem: &mut M,
    ) -> Result<Option<Self>, LinuxError> {
        let Some(areas) = places.areas else { return Ok(None) };
        let offset = u64::from(cpu & CPU_BITS).wrapping_mul(8);
        let area = read_u64(mem, areas.wrapping_add(offset))?;
        Self::of_area(area, places, layout, mem).map(Some)
    }

    /// The task of the CPU whose area this is.
    pub(crate) fn of_area<M: Memory>(
        area: u64,
        places: TaskPlaces,
        layout: TaskLayout,
        mem: &mut M,
    ) -> Result<Self, LinuxError> {
        let task = read_u64(mem, area.wrapping_add(places.current))?;
        let mut comm = [0; 16];
        read(mem, task.wrapping_add(layout.comm.into()), &mut comm)?;
        let tid = read_u32(mem, task.wrapping_add(layout.pid.into()))?;
        let pid = read_u32(mem, task.wrapping_add(layout.tgid.into()))?;
        Ok(Self { at: task, comm, pid, tid })
    }

    /// Where the registers of its user code are, if the kernel has them: at the end of its stack, while `sp` is below.
    pub(crate) fn user_registers<M: Memory>(
        &self,
        layout: TaskLayout,
        sp: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<SavedRegisters>, LinuxError> {
        let Some(offset) = layout.stack else { return Ok(None) };
        let stack = read_u64(mem, self.at.wrapping_add(offset.into()))?;
        // Another stack may begin where one of 16 KiB ends.
        let places = ENDS.map(|(start, end)| {
            let saved = SavedRegisters::all_before(stack.wrapping_add(end));
            (stack.wrapping_add(start)..saved.addr().get(), saved)
        });
        let below = places.into_iter().filter(|(place, _)| place.contains(&sp.get()));
        let mut below = below.map(|(_, saved)| saved);
        Ok(below.find(|saved| saved.read(mem).is_ok_and(|found| found.is_user())))
    }

    /// Where the root of its page tables is; `None` of a thread of the kernel.
    pub(crate) fn page_table<M: Memory>(
        &self,
        layout: TaskLayout,
        mem: &mut M,
    ) -> Result<Option<u64>, LinuxError> {
        let Some([space, root]) = layout.page_table else { return Ok(None) };
        match read_u64(mem, self.at.wrapping_add(space.into()))? {
            0 => Ok(None),
            space => read_u64(mem, space.wrapping_add(root.into())).map(Some),
        }
    }
}
