//! Any bytes as GDT and LDT: bases, modes and the walk's segments are those
//! that the manual's bit numbers give.

use unwind_x86::{CodeMode, Descriptor, DescriptorTable, DescriptorTables, Ia32, Selector};

use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (cs, ss, eflags) = (input.u16(), input.u16(), input.u32());
    let len = usize::from(input.u8());
    let (gdt, ldt) = (input.take(len), input.rest());
    let tables = DescriptorTables { gdt: DescriptorTable(gdt), ldt: DescriptorTable(ldt) };
    for selector in [cs, ss] {
        let expected = descriptor(gdt, ldt, selector);
        assert_eq!(tables.get(Selector(selector)), expected.map(Descriptor));
        let usable = |descriptor: &u64| bit(*descriptor, 47) && bit(*descriptor, 44);
        let base = expected.filter(usable).map_or(0, base);
        assert_eq!(tables.base(Selector(selector)), base);
        if let Some(descriptor) = expected {
            let mode = match (bit(descriptor, 43), bit(descriptor, 53), bit(descriptor, 54)) {
                (false, ..) => None,
                (true, true, _) => Some(CodeMode::Bits64),
                (true, false, true) => Some(CodeMode::Bits32),
                (true, false, false) => Some(CodeMode::Bits16),
            };
            let mode = mode.filter(|_| usable(&descriptor));
            assert_eq!(Descriptor(descriptor).code_mode(), mode);
        }
    }
    let base_of = |selector| tables.base(Selector(selector));
    let expected = match eflags >> 17 & 1 {
        1 => Ia32::VM86,
        _ => Ia32::with_bases(base_of(cs), base_of(ss)),
    };
    assert_eq!(tables.ia32(Selector(cs), Selector(ss), eflags), expected);
}

/// Eight bytes of the table that bit 2 chooses, if they are in it whole.
fn descriptor(gdt: &[u8], ldt: &[u8], selector: u16) -> Option<u64> {
    let at = usize::from(selector / 8) * 8;
    let table = if selector / 4 % 2 == 1 { ldt } else { gdt };
    if table.len() < at + 8 || (selector / 4 == 0) {
        return None;
    }
    Some((0..8).fold(0, |value, i| value | u64::from(table[at + i]) << (8 * i)))
}

fn bit(value: u64, number: u32) -> bool {
    value >> number & 1 == 1
}

/// Bits 16 to 39 and 56 to 63.
fn base(descriptor: u64) -> u32 {
    (descriptor >> 16 & 0xff_ffff) as u32 | ((descriptor >> 56) as u32) << 24
}
