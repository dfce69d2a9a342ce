//! Segment selectors and descriptors: where the code and stack segments of
//! 32-bit code begin.

use crate::ia32::Ia32;

/// A segment selector, as in `cs` and `ss`.
///
/// | bits | meaning |
/// |---|---|
/// | 0-1 | requested privilege level |
/// | 2 | the table: 0 GDT, 1 LDT |
/// | 3-15 | index of the descriptor |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector(pub u16);

impl Selector {
    /// The index of the descriptor in its table.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.0 >> 3
    }

    /// Whether the descriptor is in the LDT, the task's own table.
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0 & 4 != 0
    }

    /// The privilege level that it asks for: 3 is user code.
    #[must_use]
    pub const fn privilege(self) -> u8 {
        // Lossless: two bits.
        self.0.to_le_bytes()[0] & 3
    }
}

/// What size of code a code segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeMode {
    /// 16-bit code; its stacks are not walked.
    Bits16,
    /// 32-bit code.
    Bits32,
    /// 64-bit code. Segment bases count as zero.
    Bits64,
}

/// A descriptor of a code or data segment, 8 bytes.
///
/// See "Segment Descriptors" in volume 3 of Intel's manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// Whether it describes a segment that is there, of code or data.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        const PRESENT: u64 = 1 << 47;
        const CODE_OR_DATA: u64 = 1 << 44;
        self.0 & PRESENT != 0 && self.0 & CODE_OR_DATA != 0
    }

    /// The linear address of the segment's first byte.
    #[must_use]
    pub const fn base(self) -> u32 {
        let [_, _, b0, b1, b2, _, _, b3] = self.0.to_le_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    }

    /// What code it holds; `None` if it is not a code segment.
    #[must_use]
    pub const fn code_mode(self) -> Option<CodeMode> {
        const EXECUTABLE: u64 = 1 << 43;
        const LONG: u64 = 1 << 53;
        const DEFAULT_32: u64 = 1 << 54;
        if !self.is_usable() || self.0 & EXECUTABLE == 0 {
            None
        } else if self.0 & LONG != 0 {
            Some(CodeMode::Bits64)
        } else if self.0 & DEFAULT_32 != 0 {
            Some(CodeMode::Bits32)
        } else {
            Some(CodeMode::Bits16)
        }
    }
}

/// A GDT or LDT, as bytes copied from where it is.
///
/// The limit of the table is the length of the slice: a descriptor that does
/// not lie in it whole is not there.
#[derive(Clone, Copy, Debug, Default)]
pub struct DescriptorTable<'a>(pub &'a [u8]);

impl DescriptorTable<'_> {
    /// The descriptor with this index, if there is one.
    #[must_use]
    pub fn get(&self, index: u16) -> Option<Descriptor> {
        let at = usize::from(index).checked_mul(8)?;
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(Descriptor(u64::from_le_bytes(*bytes)))
    }
}

/// The two tables that selectors choose from. A kernel takes both while the
/// task that they belong to cannot be switched away.
#[derive(Clone, Copy, Debug, Default)]
pub struct DescriptorTables<'a> {
    /// The CPU's table.
    pub gdt: DescriptorTable<'a>,
    /// The task's own table; empty where it has none.
    pub ldt: DescriptorTable<'a>,
}

/// The bit of `eflags` that says that the CPU is in VM86 mode.
const EFLAGS_VM: u32 = 1 << 17;

impl DescriptorTables<'_> {
    /// The descriptor that a selector chooses, if there is one. Index 0 of the
    /// GDT is none.
    #[must_use]
    pub fn get(&self, selector: Selector) -> Option<Descriptor> {
        match (selector.is_local(), selector.index()) {
            (true, index) => self.ldt.get(index),
            (false, 0) => None,
            (false, index) => self.gdt.get(index),
        }
    }

    /// The linear base of a selector's segment. Zero, the base of all usual
    /// segments, where there is no usable descriptor: so does Linux.
    #[must_use]
    pub fn base(&self, selector: Selector) -> u32 {
        self.get(selector).filter(|found| found.is_usable()).map_or(0, Descriptor::base)
    }

    /// How to walk 32-bit code that runs with these segments and flags.
    #[must_use]
    pub fn ia32(&self, cs: Selector, ss: Selector, eflags: u32) -> Ia32 {
        if eflags & EFLAGS_VM != 0 {
            return Ia32::VM86;
        }
        Ia32::with_bases(self.base(cs), self.base(ss))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::vec::Vec;

    /// Base 0x12345678, a present, writable data segment of ring 3.
    const DATA: u64 = 0x12cf_f334_5678_ffff;
    /// Base 0, present code of ring 3: 32-bit and 64-bit.
    const CODE_32: u64 = 0x00cf_fb00_0000_ffff;
    const CODE_64: u64 = 0x00af_fb00_0000_ffff;

    fn bytes<const N: usize>(descriptors: [u64; N]) -> Vec<u8> {
        descriptors.iter().flat_map(|descriptor| descriptor.to_le_bytes()).collect()
    }

    #[test]
    fn r3_10_the_base_is_put_together_from_its_pieces() {
        assert_eq!(Descriptor(DATA).base(), 0x1234_5678);
        assert_eq!(Descriptor(CODE_32).base(), 0);
    }

    #[test]
    fn the_mode_is_that_of_a_present_code_segment() {
        assert_eq!(Descriptor(CODE_32).code_mode(), Some(CodeMode::Bits32));
        assert_eq!(Descriptor(CODE_64).code_mode(), Some(CodeMode::Bits64));
        assert_eq!(Descriptor(CODE_32 & !(1 << 54)).code_mode(), Some(CodeMode::Bits16));
        assert_eq!(Descriptor(DATA).code_mode(), None);
        assert_eq!(Descriptor(CODE_32 & !(1 << 47)).code_mode(), None);
        assert_eq!(Descriptor(CODE_32 & !(1 << 44)).code_mode(), None);
    }

    #[test]
    fn s3_r3_10_a_segment_that_is_absent_or_of_the_system_has_base_zero() {
        for (descriptor, base) in
            [(DATA, 0x1234_5678), (DATA & !(1 << 47), 0), (DATA & !(1 << 44), 0)]
        {
            let gdt = bytes([0, descriptor]);
            let tables = DescriptorTables { gdt: DescriptorTable(&gdt), ldt: DescriptorTable(&[]) };
            assert_eq!(tables.base(Selector(0x0b)), base, "{descriptor:#x}");
        }
    }

    #[test]
    fn r3_10_a_selector_chooses_from_its_own_table() {
        let (gdt, ldt) = (bytes([DATA, CODE_32]), bytes([DATA]));
        let tables = DescriptorTables { gdt: DescriptorTable(&gdt), ldt: DescriptorTable(&ldt) };
        assert_eq!(tables.base(Selector(0x07)), 0x1234_5678, "LDT 0");
        assert_eq!(tables.base(Selector(0x03)), 0, "GDT 0 is the null selector");
        assert_eq!(tables.base(Selector(0x0b)), 0, "GDT 1");
        for outside in [0x0f, 0x13, 0xffff, 0xfffb] {
            assert_eq!(tables.base(Selector(outside)), 0, "{outside:#x}");
        }
        assert_eq!(Selector(0x0b).privilege(), 3);
    }

    #[test]
    fn a_cut_table_has_only_its_whole_descriptors() {
        let gdt = bytes([0, DATA, DATA]);
        for len in 0..=gdt.len() {
            let table = DescriptorTable(&gdt[..len]);
            assert_eq!(table.get(1).is_some(), len >= 16, "{len} bytes");
            assert_eq!(table.get(2).is_some(), len >= 24, "{len} bytes");
        }
    }

    #[test]
    fn r3_10_code_and_stack_have_the_bases_of_their_own_segments() {
        /// Base `0xfedc_ba98`, code.
        const CODE: u64 = 0xfecf_fadc_ba98_ffff;
        let (gdt, ldt) = (bytes([0, CODE]), bytes([DATA]));
        let tables = DescriptorTables { gdt: DescriptorTable(&gdt), ldt: DescriptorTable(&ldt) };
        let (code, stack) = (Selector(0x0b), Selector(0x07));
        assert_eq!(tables.ia32(code, stack, 0x202), Ia32::with_bases(0xfedc_ba98, 0x1234_5678));
        assert_eq!(tables.ia32(stack, code, 0x202), Ia32::with_bases(0x1234_5678, 0xfedc_ba98));
        assert_eq!(tables.ia32(code, Selector(0x2b), 0x202), Ia32::with_bases(0xfedc_ba98, 0));
    }

    #[test]
    fn r3_10_vm86_is_refused() {
        let tables = DescriptorTables::default();
        assert_eq!(tables.ia32(Selector(0x23), Selector(0x2b), 1 << 17), Ia32::VM86);
        assert_eq!(tables.ia32(Selector(0x23), Selector(0x2b), 0x202), Ia32::FLAT);
    }
}
