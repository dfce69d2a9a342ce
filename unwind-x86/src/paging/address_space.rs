//! What the control registers say about linear addresses, and the walk.

use unwind_core::VirtAddr;

use super::entry::{EntryBits, EntryRules};
use super::fault::{Fault, Level};
use super::mode::PagingMode;
use super::physical::{PhysAddr, PhysicalMemory};

/// The registers that paging depends on, as a vCPU has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlRegisters {
    /// Control register 0: whether paging is on.
    pub cr0: u64,
    /// Control register 3: the root table.
    pub cr3: u64,
    /// Control register 4: which features are on.
    pub cr4: u64,
    /// The extended feature enable register: long mode.
    pub efer: u64,
    /// The current privilege level, from 0, the kernel's, to 3, user code's: the DPL of SS, or
    /// the two lowest bits of CS's selector (Intel SDM volume 3, section 5.5). In virtual-8086
    /// mode it is 3.
    pub cpl: u8,
}

/// On whose behalf memory is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// User code's: pages that are the kernel's alone are refused.
    #[default]
    User,
    /// The kernel's: all pages can be read, those of user code too.
    Supervisor,
}

/// How the linear addresses of one task, or of a kernel, are translated.
///
/// Unless said otherwise, or by registers, it reads on behalf of user code, large and huge
/// pages may be used, no-execute is on, and physical addresses have 52 bits, the most
/// there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    rules: EntryRules,
    cr3: u64,
    access: Access,
    has_pcid: bool,
}

impl AddressSpace {
    /// The address space of `mode` whose root table `cr3` names.
    ///
    /// Of `cr3` only the address counts: caching bits and a PCID below it, and
    /// what is above bit 51, are not part of it.
    #[must_use]
    pub const fn new(mode: PagingMode, cr3: u64) -> Self {
        let rules = EntryRules {
            mode,
            phys_bits: 52,
            large_pages: true,
            huge_pages: true,
            no_execute: true,
        };
        Self { rules, cr3, access: Access::User, has_pcid: false }
    }

    /// The address space that these registers select, read on behalf of the code that the
    /// vCPU executes: of user code at privilege level 3, else of the kernel.
    ///
    /// `CR4.SMAP` and `CR4.SMEP` are not looked at: SMEP is about execution, and a kernel under
    /// SMAP sets `EFLAGS.AC` to read user memory, as a walk does that continues from the
    /// kernel's stack to the user's.
    #[must_use]
    pub const fn from_registers(registers: &ControlRegisters) -> Self {
        const CR0_PG: u64 = 1 << 31;
        const CR4_PSE: u64 = 1 << 4;
        const CR4_PAE: u64 = 1 << 5;
        const CR4_LA57: u64 = 1 << 12;
        const CR4_PCIDE: u64 = 1 << 17;
        const EFER_LMA: u64 = 1 << 10;
        const EFER_NXE: u64 = 1 << 11;
        let ControlRegisters { cr0, cr3, cr4, efer, cpl } = *registers;
        let mode = if cr0 & CR0_PG == 0 {
            PagingMode::Off
        } else if efer & EFER_LMA != 0 {
            if cr4 & CR4_LA57 == 0 { PagingMode::FourLevel } else { PagingMode::FiveLevel }
        } else if cr4 & CR4_PAE != 0 {
            PagingMode::Pae
        } else {
            PagingMode::TwoLevel
        };
        let mut space = Self::new(mode, cr3);
        space.rules.large_pages = cr4 & CR4_PSE != 0;
        space.rules.no_execute = efer & EFER_NXE != 0;
        space.access = if cpl & 3 == 3 { Access::User } else { Access::Supervisor };
        space.has_pcid = cr4 & CR4_PCIDE != 0 && efer & EFER_LMA != 0;
        space
    }

    /// The same, read on behalf of the kernel or of user code, whatever the registers said.
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The same on a CPU with physical addresses of `bits` bits
    /// (`MAXPHYADDR`): address bits above are reserved. Less than 32 counts as
    /// 32, more than 52 as 52. 32 is also right for a CPU without PSE-36.
    #[must_use]
    pub const fn phys_bits(mut self, bits: u32) -> Self {
        self.rules.phys_bits = match bits {
            0..=31 => 32,
            32..=52 => bits,
            _ => 52,
        };
        self
    }

    /// The same with or without large pages in 2-level paging (`CR4.PSE`); the
    /// other modes always have them.
    #[must_use]
    pub const fn large_pages(mut self, on: bool) -> Self {
        self.rules.large_pages = on;
        self
    }

    /// The same on a CPU with or without 1-GiB pages. Where it has none, an
    /// entry that would be one has a reserved bit set.
    #[must_use]
    pub const fn huge_pages(mut self, on: bool) -> Self {
        self.rules.huge_pages = on;
        self
    }

    /// The same with or without no-execute (`EFER.NXE`). Where it is off, the
    /// bit is reserved.
    #[must_use]
    pub const fn no_execute(mut self, on: bool) -> Self {
        self.rules.no_execute = on;
        self
    }

    /// The mode.
    #[must_use]
    pub const fn mode(&self) -> PagingMode {
        self.rules.mode
    }

    /// The process-context identifier, if the registers have one.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "twelve bits, in a const fn")]
    pub const fn pcid(&self) -> Option<u16> {
        if self.has_pcid { Some((self.cr3 & 0xfff) as u16) } else { None }
    }

    /// Where the root table begins.
    #[must_use]
    pub const fn root(&self) -> PhysAddr {
        PhysAddr::new(match self.rules.mode {
            PagingMode::Off => 0,
            PagingMode::TwoLevel => self.cr3 & 0xffff_f000,
            PagingMode::Pae => self.cr3 & 0xffff_ffe0,
            PagingMode::FourLevel | PagingMode::FiveLevel => self.cr3 & 0x000f_ffff_ffff_f000,
        })
    }

    /// Translates one address: reads one entry a level from `phys`.
    ///
    /// User code's walks end at the first entry that keeps user code out, so
    /// whether there is anything below it is not told.
    ///
    /// # Errors
    ///
    /// [`Fault`], at the first entry from the root down that stands against
    /// it.
    pub fn translate<P>(&self, phys: &mut P, addr: VirtAddr) -> Result<Page, Fault>
    where
        P: PhysicalMemory + ?Sized,
    {
        let linear = addr.get();
        if !self.rules.mode.has(linear) {
            return Err(Fault::NotLinear(addr));
        }
        let (entry_bits, index_bits) = self.rules.mode.table_shape();
        let mut table = self.root().get();
        for &(level, size_bits) in self.rules.mode.levels() {
            let index = linear >> size_bits & (1_u64 << index_bits).wrapping_sub(1);
            // PAE's root has four entries, which 32-bit addresses cannot exceed.
            let at = PhysAddr::new(table | index << entry_bits);
            let entry = self.fetch(phys, at, level)?;
            if entry.is_page(self.rules, level) {
                let start = PhysAddr::new(entry.page(self.rules.mode, level, size_bits));
                return Ok(Page { start, size_bits });
            }
            table = entry.table(self.rules.mode);
        }
        // Only a mode without levels comes here.
        Ok(Page { start: PhysAddr::new(0), size_bits: u32::BITS })
    }

    /// Reads an entry and checks all there is to check about it.
    fn fetch<P>(&self, phys: &mut P, at: PhysAddr, level: Level) -> Result<EntryBits, Fault>
    where
        P: PhysicalMemory + ?Sized,
    {
        let mut bytes = [0; 8];
        let unreadable = |error| Fault::Table { level, at, error };
        if let (PagingMode::TwoLevel, Some(half)) = (self.rules.mode, bytes.first_chunk_mut::<4>())
        {
            phys.read(at, half).map_err(unreadable)?;
        } else {
            phys.read(at, &mut bytes).map_err(unreadable)?;
        }
        let entry = EntryBits(u64::from_le_bytes(bytes));
        if !entry.is_present() {
            return Err(Fault::NotPresent { level, at });
        }
        let bits = entry.reserved_bits(self.rules, level);
        if bits != 0 {
            return Err(Fault::Reserved { level, at, bits });
        }
        if self.access == Access::User && !entry.is_user(self.rules.mode, level) {
            return Err(Fault::Supervisor { level, at });
        }
        Ok(entry)
    }
}

/// A page that an address was found to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    start: PhysAddr,
    size_bits: u32,
}

impl Page {
    /// Where it begins: a multiple of its size.
    #[must_use]
    pub const fn start(&self) -> PhysAddr {
        self.start
    }

    /// How many bytes it has: 4 KiB, 2 MiB, 4 MiB or 1 GiB, or 4 GiB where
    /// paging is off.
    #[must_use]
    pub const fn size(&self) -> u64 {
        1 << self.size_bits
    }

    /// Where `addr`, one of its addresses, is.
    #[must_use]
    pub const fn locate(&self, addr: VirtAddr) -> PhysAddr {
        PhysAddr::new(self.start.get() | addr.get() & self.size().wrapping_sub(1))
    }
}
