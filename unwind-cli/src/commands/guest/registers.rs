//! The registers of a vCPU, as QEMU's `info registers` prints them.

use std::collections::HashMap;

use unwind_guest::{Segment, VcpuRegisters};

/// What a vCPU is about to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VcpuState {
    /// In 32-bit code zero-extended, without r8 to r15.
    pub(crate) registers: VcpuRegisters,
    pub(crate) place: CpuPlace,
    /// Whether it waits for an interrupt.
    pub(crate) is_halted: bool,
}

/// What tells which CPU of its kernel a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuPlace {
    /// Where its table of segments is, and the base of its segment GS: in the kernel, but for some instructions, that is
    /// where the kernel has the variables of this CPU.
    Segments { gdt: u64, gs: u64 },
    /// The base of its segment GS, and the one that it has when it enters the kernel or has left it: one of them is where the
    /// kernel has the variables of this CPU, the other is user code's, which may be any.
    Bases { used: u64, other: u64 },
    /// Its number, and that of the thread which it ran, of a kernel that has crashed: the control registers are those
    /// of the kernel itself, whatever that was.
    Crashed { cpu: u32, tid: u32 },
}

/// A register that is not there, or not in the known form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the monitor shows no register {0}")]
pub(crate) struct MissingRegister(pub(crate) &'static str);

/// The descriptor's bits for 64-bit and for 32-bit code, in its upper half.
const FLAG_L: u64 = 1 << 21;
const FLAG_D: u64 = 1 << 22;

impl VcpuState {
    /// Reads the text of `info registers` for one vCPU of an x86 guest.
    ///
    /// # Errors
    ///
    /// [`MissingRegister`] if one that is needed is not there.
    pub(crate) fn parse(text: &str) -> Result<Self, MissingRegister> {
        let fields = Fields::new(text);
        let (cs, ss) = (fields.segment("CS")?, fields.segment("SS")?);
        let dpl = u8::try_from(fields.need("CPL")?).unwrap_or(u8::MAX);
        let (cr0, cr3, cr4) = (fields.need("CR0")?, fields.need("CR3")?, fields.need("CR4")?);
        // Only a QEMU for 32-bit guests has no such register.
        let efer = fields.number("EFER").unwrap_or(0);
        // QEMU chooses the names by the code that runs.
        let registers = if fields.number("RIP").is_some() {
            let names = [
                "RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", "R8", "R9", "R10", "R11",
                "R12", "R13", "R14", "R15",
            ];
            let (rip, rflags) = (fields.need("RIP")?, fields.need("RFL")?);
            VcpuRegisters { general: fields.all(names)?, rip, rflags, ..VcpuRegisters::default() }
        } else {
            let names = ["EAX", "EDX", "ECX", "EBX", "ESI", "EDI", "EBP", "ESP"];
            let [a, b, c, d, e, f, g, h] = fields.all(names)?;
            let general = [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0];
            let (rip, rflags) = (fields.need("EIP")?, fields.need("EFL")?);
            VcpuRegisters { general, rip, rflags, ..VcpuRegisters::default() }
        };
        let ss = Segment { dpl, ..ss };
        let is_halted = fields.number("HLT") == Some(1);
        Ok(Self {
            place: CpuPlace::Segments {
                gdt: fields.number("GDT").unwrap_or(0),
                gs: fields.segment("GS").map_or(0, |gs| gs.base),
            },
            registers: VcpuRegisters { cs, ss, cr0, cr3, cr4, efer, ..registers },
            is_halted,
        })
    }
}

/// The words of the text by their names.
///
/// With each is the text after it: that of a segment register has its base there.
struct Fields<'t>(HashMap<&'t str, (u64, &'t str)>);

impl<'t> Fields<'t> {
    fn new(text: &'t str) -> Self {
        let mut fields = Self(HashMap::new());
        for line in text.lines() {
            fields.read_line(line);
        }
        fields
    }

    /// A line has fields `NAME=HEX` or `NAME =HEX`; that of a segment continues
    /// with base, limit and flags.
    fn read_line(&mut self, line: &'t str) {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('=') {
            let name = before.split_whitespace().next_back().unwrap_or_default();
            let word = after.split_whitespace().next().unwrap_or_default();
            if let Ok(number) = u64::from_str_radix(word, 16) {
                // The first one counts: what follows is no register's.
                self.0.entry(name).or_insert((number, after));
            }
            rest = after;
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|&(number, _)| number)
    }

    fn need(&self, name: &'static str) -> Result<u64, MissingRegister> {
        self.number(name).ok_or(MissingRegister(name))
    }

    fn all<const N: usize>(&self, names: [&'static str; N]) -> Result<[u64; N], MissingRegister> {
        let mut numbers = [0; N];
        for (number, name) in numbers.iter_mut().zip(names) {
            *number = self.need(name)?;
        }
        Ok(numbers)
    }

    fn segment(&self, name: &'static str) -> Result<Segment, MissingRegister> {
        let (selector, text) = self.0.get(name).ok_or(MissingRegister(name))?;
        let mut words = text.split_whitespace().map(|word| u64::from_str_radix(word, 16));
        let (Some(Ok(_selector)), Some(Ok(base)), Some(Ok(_limit)), Some(Ok(flags))) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(MissingRegister(name));
        };
        let selector = u16::try_from(*selector).unwrap_or_default();
        let (l, db) = (flags & FLAG_L != 0, flags & FLAG_D != 0);
        Ok(Segment { base, selector, l, db, ..Segment::default() })
    }
}

#[cfg(test)]
mod tests {
    use unwind_guest::CodeKind;

    use super::*;

    const LONG: &str = "
CPU#0
RAX=0000000000000001 RBX=0000000000000002 RCX=0000000000000003 RDX=0000000000000004
RSI=0000000000000005 RDI=0000000000000006 RBP=0000000000000007 RSP=00007ffe00000008
R8 =0000000000000009 R9 =000000000000000a R10=000000000000000b R11=000000000000000c
R12=000000000000000d R13=000000000000000e R14=000000000000000f R15=0000000000000010
RIP=ffffffff81000011 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1
ES =0000 0000000000000000 00000000 00000000
CS =0010 0000000000000000 ffffffff 00af9b00 DPL=0 CS64 [-RA]
SS =0018 0000000000000000 ffffffff 00cf9300 DPL=0 DS   [-WA]
GS =0000 ffff88800fc00000 00000000 00000000
GDT=     fffffe0000001000 0000007f
CR0=80050033 CR2=000000000055e0a8 CR3=0000000001ea4801 CR4=00021ef0
EFER=0000000000000d01
FCW=037f FSW=0000 [ST=0] FTW=00 MXCSR=00001f80
";

    const COMPAT: &str = "
EAX=00000001 EBX=00000002 ECX=00000003 EDX=00000004
ESI=00000005 EDI=00000006 EBP=ffeffea4 ESP=ffeffe94
EIP=08049019 EFL=00000212 [----A--] CPL=3 II=0 A20=1 SMM=0 HLT=0
CS =001b 00001000 ffffffff 00cffb00 DPL=3 CS32 [-RA]
SS =0023 00002000 ffffffff 00cff300 DPL=3 DS   [-WA]
CR0=80010033 CR2=0000123456789000 CR3=00000000001ea000 CR4=00000620
EFER=0000000000000d01
";

    #[test]
    fn long_mode_has_all_registers() {
        let vcpu = VcpuState::parse(LONG).unwrap();
        let registers = vcpu.registers;
        let sp = 0x7ffe_0000_0008;
        assert_eq!(registers.general, [1, 4, 3, 2, 5, 6, 7, sp, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!((registers.rip, registers.rflags), (0xffff_ffff_8100_0011, 0x246));
        assert_eq!((registers.cs.selector, registers.ss.selector), (0x10, 0x18));
        assert_eq!((registers.code(), registers.cpl()), (CodeKind::X86_64, 0));
        assert!(vcpu.is_halted);
        assert_eq!(
            vcpu.place,
            CpuPlace::Segments { gdt: 0xffff_fe00_0000_1000, gs: 0xffff_8880_0fc0_0000 }
        );
        let VcpuRegisters { cr0, cr3, cr4, efer, .. } = registers;
        assert_eq!([cr0, cr3, cr4, efer], [0x8005_0033, 0x01ea_4801, 0x0002_1ef0, 0xd01]);
    }

    #[test]
    fn compat_code_is_told_by_its_segment_and_has_bases() {
        let vcpu = VcpuState::parse(COMPAT).unwrap();
        let code = CodeKind::Ia32 { code_base: 0x1000, stack_base: 0x2000 };
        assert_eq!((vcpu.registers.code(), vcpu.registers.is_user()), (code, true));
        assert!(!vcpu.is_halted);
        let (esp, ebp) = (0xffef_fe94, 0xffef_fea4);
        let general = [1, 4, 3, 2, 5, 6, ebp, esp, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((vcpu.registers.rip, vcpu.registers.general), (0x0804_9019, general));
    }

    #[test]
    fn sixteen_bit_code_is_told_apart() {
        let code = |text: String| VcpuState::parse(&text).unwrap().registers.code();
        let long_off = COMPAT.replace("EFER=0000000000000d01", "EFER=0");
        for text in [
            COMPAT.replace("CR0=80010033", "CR0=60000010"),
            long_off.replace("EFL=00000212", "EFL=00020212"),
            COMPAT.replace("00cffb00", "008ffb00"),
        ] {
            assert_eq!(code(text), CodeKind::Sixteen);
        }
    }

    #[test]
    fn each_register_that_is_missing_is_named() {
        for (text, name) in [
            (LONG, "R9"),
            (LONG, "RFL"),
            (LONG, "CR3"),
            (COMPAT, "EBP"),
            (COMPAT, "CPL"),
            (COMPAT, "SS"),
        ] {
            let pattern = format!("{name:<3}=");
            assert!(text.contains(&pattern), "{name}");
            let without = text.replace(&pattern, "no=");
            assert_eq!(VcpuState::parse(&without), Err(MissingRegister(name)));
        }
        assert_eq!(VcpuState::parse(""), Err(MissingRegister("CS")));
        let cut = COMPAT.replace("00cffb00 DPL=3", "DPL=3");
        assert_eq!(VcpuState::parse(&cut), Err(MissingRegister("CS")));
    }
}
