//! A guest's memory that a test lays out, its page tables, and ORC tables for code that there is not.

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource, VirtAddr};
use unwind_guest::orc::{OrcLayout, OrcTable};
use unwind_guest::paging::{FlatMemory, PagingMode};
use unwind_guest::{Segment, VcpuRegisters};

/// Code of the kernel and of the program.
pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub const USER: u64 = 0x40_1000;
/// Where the kernel's task and interrupt stacks are, and the user's: a page each.
pub const TASK_STACK: u64 = 0xffff_c900_0000_8000;
pub const IRQ_STACK: u64 = 0xffff_c900_0000_1000;
pub const USER_STACK: u64 = 0x7fff_0000_0000;

/// Physical memory, where tables and pages follow each other.
pub struct Guest {
    pub ram: Vec<u8>,
    pub root: u64,
    mode: PagingMode,
}

impl Guest {
    /// With the stacks, and a root table for each of the kernel and of user code under KPTI.
    pub fn new(mode: PagingMode) -> Self {
        let mut guest = Self { ram: vec![0; 0x4000], root: 0x2000, mode };
        for (page, is_user) in [(TASK_STACK, false), (IRQ_STACK, false), (USER_STACK, true)] {
            guest.map(page, is_user);
        }
        guest
    }

    pub fn memory(&self) -> FlatMemory<'_> {
        FlatMemory::new(&self.ram)
    }

    fn new_page(&mut self) -> u64 {
        let at = self.ram.len();
        self.ram.resize(at + 0x1000, 0);
        at.try_into().unwrap()
    }

    fn entry(&mut self, at: u64) -> &mut [u8; 8] {
        let at = usize::try_from(at).unwrap();
        self.ram[at..].first_chunk_mut().unwrap()
    }

    /// Maps a page of its own, and returns where it is. It reuses what is there of tables.
    pub fn map(&mut self, addr: u64, is_user: bool) -> u64 {
        let page = self.new_page();
        self.map_at(self.root, addr, page, is_user);
        page
    }

    pub fn map_at(&mut self, root: u64, addr: u64, page: u64, is_user: bool) {
        let shifts: &[u64] = match self.mode {
            PagingMode::FiveLevel => &[48, 39, 30, 21, 12],
            _ => &[39, 30, 21, 12],
        };
        let mut table = root;
        for &shift in shifts {
            let at = table + 8 * (addr >> shift & 0x1ff);
            let mut entry = u64::from_le_bytes(*self.entry(at));
            if shift == 12 {
                entry = page | 3 | if is_user { 4 } else { 0 };
            } else if entry == 0 {
                entry = self.new_page() | 7;
            }
            *self.entry(at) = entry.to_le_bytes();
            table = entry & !0xfff;
        }
    }

    /// Where an address is by the root table.
    pub fn locate(&mut self, addr: u64) -> Option<u64> {
        let shifts: &[u64] = match self.mode {
            PagingMode::FiveLevel => &[48, 39, 30, 21, 12],
            _ => &[39, 30, 21, 12],
        };
        let mut table = self.root;
        for shift in shifts {
            let at = table + 8 * (addr >> shift & 0x1ff);
            let entry = u64::from_le_bytes(*self.entry(at));
            if entry == 0 {
                return None;
            }
            table = entry & !0xfff;
        }
        Some(table | addr & 0xfff)
    }

    /// Writes words that follow each other within a page.
    pub fn write(&mut self, addr: u64, words: &[u64]) {
        let mut at = self.locate(addr).expect("mapped");
        for word in words {
            *self.entry(at) = word.to_le_bytes();
            at += 8;
        }
    }

    /// Writes all registers of interrupted code, as Linux saves them.
    pub fn save(&mut self, at: u64, (rip, rsp, rbp): (u64, u64, u64), (cs, ss): (u64, u64)) {
        let mut words = [0; 21];
        (words[4], words[16], words[17], words[19], words[20]) = (rbp, rip, cs, rsp, ss);
        // rdi and r10, which rows may start from.
        (words[14], words[7]) = (0xd1d1, rsp + 0x40);
        self.write(at, &words);
    }

    /// A vCPU in 64-bit code of this privilege.
    pub fn vcpu(&self, dpl: u8, (rip, rsp, rbp): (u64, u64, u64)) -> VcpuRegisters {
        let la57 = if self.mode == PagingMode::FiveLevel { 1 << 12 } else { 0 };
        let mut general = [0; 16];
        (general[6], general[7]) = (rbp, rsp);
        let segment = Segment { dpl, ..Segment::default() };
        VcpuRegisters {
            general,
            rip,
            rflags: 2,
            cs: Segment { l: true, ..segment },
            ss: segment,
            cr0: 0x8005_0033,
            // A PCID below the address.
            cr3: self.root | 5,
            cr4: 0x2_06b0 | la57,
            efer: 0xd01,
        }
    }
}

/// Entries, each a page of code: `KERNEL`, `KERNEL + 0x1000` and so on.
pub struct Orc {
    pub ips: Vec<u8>,
    pub entries: Vec<u8>,
}

/// Where the table of addresses is.
pub const IPS_AT: u64 = 0xffff_ffff_8200_0000;

impl Orc {
    pub fn new(entries: &[[u8; 6]]) -> Self {
        let mut ips = Vec::new();
        for (index, _) in (0..).zip(entries) {
            let offset = (KERNEL + index * 0x1000).wrapping_sub(IPS_AT + index * 4);
            ips.extend(i32::try_from(offset.cast_signed()).unwrap().to_le_bytes());
        }
        Self { ips, entries: entries.concat() }
    }

    pub fn table(&self) -> OrcTable<'_> {
        let ips = (&*self.ips, VirtAddr::new(IPS_AT));
        OrcTable::from_sections(OrcLayout::Linux6_4, ips, &self.entries).unwrap()
    }
}

/// Entries in the layout of Linux 6.4.
pub const fn entry(offsets: [i16; 2], bases: u8, kind: u8) -> [u8; 6] {
    let ([a, b], [c, d]) = (offsets[0].to_le_bytes(), offsets[1].to_le_bytes());
    [a, b, c, d, bases, kind]
}
pub const UNDEFINED: [u8; 6] = [0; 6];
pub const END: [u8; 6] = entry([0, 0], 0, 1);
pub const SIGNAL: u8 = 8;
pub const REGISTERS: [u8; 6] = entry([0, 0], 5, 3 | SIGNAL);

pub const fn call(cfa: i16) -> [u8; 6] {
    entry([cfa, 0], 5, 2)
}

/// User code without frame pointers: the return address is two words above the stack pointer,
/// and zero in the outermost frame.
#[derive(Clone, Copy, Debug)]
pub struct Plain(pub i32);

impl<A: Arch> RowSource<A> for Plain {
    type Error = core::convert::Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        use unwind_core::{CfaRule, RegRule};
        let word = i32::try_from(A::WORD.bytes()).unwrap();
        let row = Row::new(CfaRule::sp(self.0), RegRule::Offset(-word), RegRule::SameValue);
        Ok(Some(row))
    }
}
