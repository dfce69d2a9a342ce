//! The registers of a vCPU, as QEMU's `info registers` prints them.

use std::collections::HashMap;
use std::str::SplitWhitespace;

use unwind_target::stack::walk::low_half;
use unwind_target::target::registers::UserRegisters;
use unwind_x86::paging::ControlRegisters;

/// What a vCPU is about to execute, and how its memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VcpuRegisters {
    /// The general registers; in 32-bit code zero-extended, without r8 to r15.
    pub(crate) general: UserRegisters,
    pub(crate) mode: Mode,
    /// Whether user code runs: privilege level 3.
    pub(crate) is_user: bool,
    /// Whether the vCPU waits for an interrupt.
    pub(crate) is_halted: bool,
    pub(crate) control: ControlRegisters,
}

/// The kind of code that a vCPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// 64-bit code.
    Long,
    /// 32-bit code with these segment bases.
    Protected {
        /// Of the code segment.
        code_base: u32,
        /// Of the stack segment.
        stack_base: u32,
    },
    /// 16-bit code, whose stacks are not walked: real mode, VM86, a 16-bit
    /// segment.
    Sixteen,
}

/// A register that is not there, or not in the known form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`info registers` shows no {0}")]
pub(crate) struct MissingRegister(pub(crate) &'static str);

/// A segment register.
#[derive(Clone, Copy, Debug)]
struct Segment {
    selector: u64,
    base: u64,
    /// The upper half of the descriptor.
    flags: u64,
}

/// The descriptor's bits for 64-bit and for 32-bit code.
const FLAG_L: u64 = 1 << 21;
const FLAG_D: u64 = 1 << 22;

const CR0_PE: u64 = 1;
const EFER_LMA: u64 = 1 << 10;
const EFLAGS_VM: u64 = 1 << 17;

impl VcpuRegisters {
    /// Reads the text of `info registers` for one vCPU of an x86 guest.
    ///
    /// # Errors
    ///
    /// [`MissingRegister`] if one that is needed is not there.
    pub(crate) fn parse(text: &str) -> Result<Self, MissingRegister> {
        let fields = Fields::new(text);
        let cs = fields.segment("CS")?;
        let ss = fields.segment("SS")?;
        // Only a QEMU for 32-bit guests has no such register.
        let efer = fields.number("EFER").unwrap_or(0);
        let control = ControlRegisters {
            cr0: fields.need("CR0")?,
            cr3: fields.need("CR3")?,
            cr4: fields.need("CR4")?,
            efer,
            cpl: u8::try_from(fields.need("CPL")?).unwrap_or(u8::MAX),
        };
        // QEMU chooses the names by the code that runs.
        let mut general = if fields.number("RIP").is_some() {
            fields.wide_registers()?
        } else {
            fields.narrow_registers()?
        };
        (general.cs, general.ss) = (cs.selector, ss.selector);
        let is_vm86 = general.eflags & EFLAGS_VM != 0;
        let mode = if control.cr0 & CR0_PE == 0 || is_vm86 {
            Mode::Sixteen
        } else if efer & EFER_LMA != 0 && cs.flags & FLAG_L != 0 {
            Mode::Long
        } else if cs.flags & FLAG_D != 0 {
            Mode::Protected { code_base: low_half(cs.base), stack_base: low_half(ss.base) }
        } else {
            Mode::Sixteen
        };
        Ok(Self {
            general,
            mode,
            is_user: control.cpl == 3,
            is_halted: fields.number("HLT") == Some(1),
            control,
        })
    }
}

/// The words of the text by their names.
struct Fields<'t> {
    numbers: HashMap<&'t str, u64>,
    /// What follows the selector of a segment register.
    segments: HashMap<&'t str, (u64, SplitWhitespace<'t>)>,
}

impl<'t> Fields<'t> {
    fn new(text: &'t str) -> Self {
        let mut fields = Self { numbers: HashMap::new(), segments: HashMap::new() };
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
            let mut words = after.split_whitespace();
            let number = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            if let Some(number) = number {
                // The first one counts: what follows is no register's.
                self.numbers.entry(name).or_insert(number);
                self.segments.entry(name).or_insert((number, words));
            }
            rest = after;
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    fn need(&self, name: &'static str) -> Result<u64, MissingRegister> {
        self.number(name).ok_or(MissingRegister(name))
    }

    fn segment(&self, name: &'static str) -> Result<Segment, MissingRegister> {
        let (selector, words) = self.segments.get(name).ok_or(MissingRegister(name))?;
        let mut words = words.clone().map(|word| u64::from_str_radix(word, 16));
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(base)), Some(Ok(_limit)), Some(Ok(flags))) => {
                Ok(Segment { selector: *selector, base, flags })
            }
            _ => Err(MissingRegister(name)),
        }
    }

    fn wide_registers(&self) -> Result<UserRegisters, MissingRegister> {
        Ok(UserRegisters {
            rax: self.need("RAX")?,
            rbx: self.need("RBX")?,
            rcx: self.need("RCX")?,
            rdx: self.need("RDX")?,
            rsi: self.need("RSI")?,
            rdi: self.need("RDI")?,
            rbp: self.need("RBP")?,
            rsp: self.need("RSP")?,
            r8: self.need("R8")?,
            r9: self.need("R9")?,
            r10: self.need("R10")?,
            r11: self.need("R11")?,
            r12: self.need("R12")?,
            r13: self.need("R13")?,
            r14: self.need("R14")?,
            r15: self.need("R15")?,
            rip: self.need("RIP")?,
            eflags: self.need("RFL")?,
            ..UserRegisters::default()
        })
    }

    fn narrow_registers(&self) -> Result<UserRegisters, MissingRegister> {
        Ok(UserRegisters {
            rax: self.need("EAX")?,
            rbx: self.need("EBX")?,
            rcx: self.need("ECX")?,
            rdx: self.need("EDX")?,
            rsi: self.need("ESI")?,
            rdi: self.need("EDI")?,
            rbp: self.need("EBP")?,
            rsp: self.need("ESP")?,
            rip: self.need("EIP")?,
            eflags: self.need("EFL")?,
            ..UserRegisters::default()
        })
    }
}

#[cfg(test)]
mod tests {
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
        let vcpu = VcpuRegisters::parse(LONG).unwrap();
        let r = vcpu.general;
        assert_eq!([r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp], [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!([r.r8, r.r9, r.r10, r.r11, r.r12, r.r13], [9, 10, 11, 12, 13, 14]);
        assert_eq!([r.r14, r.r15, r.rip, r.rsp], [15, 16, 0xffff_ffff_8100_0011, 0x7ffe_0000_0008]);
        assert_eq!((vcpu.mode, vcpu.is_user, vcpu.is_halted), (Mode::Long, false, true));
        let ControlRegisters { cr0, cr3, cr4, efer, cpl } = vcpu.control;
        assert_eq!(cpl, 0);
        assert_eq!([cr0, cr3, cr4, efer], [0x8005_0033, 0x01ea_4801, 0x0002_1ef0, 0xd01]);
    }

    #[test]
    fn compat_code_is_told_by_its_segment_and_has_bases() {
        let vcpu = VcpuRegisters::parse(COMPAT).unwrap();
        let mode = Mode::Protected { code_base: 0x1000, stack_base: 0x2000 };
        assert_eq!((vcpu.mode, vcpu.is_user, vcpu.is_halted), (mode, true, false));
        let r = vcpu.general;
        assert_eq!([r.rip, r.rsp, r.rbp], [0x0804_9019, 0xffef_fe94, 0xffef_fea4]);
    }

    #[test]
    fn sixteen_bit_code_is_told_apart() {
        let mode = |text: String| VcpuRegisters::parse(&text).unwrap().mode;
        assert_eq!(mode(COMPAT.replace("CR0=80010033", "CR0=60000010")), Mode::Sixteen, "real");
        assert_eq!(mode(COMPAT.replace("EFL=00000212", "EFL=00020212")), Mode::Sixteen, "VM86");
        assert_eq!(mode(COMPAT.replace("00cffb00", "008ffb00")), Mode::Sixteen, "segment");
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
            assert_eq!(VcpuRegisters::parse(&without), Err(MissingRegister(name)));
        }
        assert_eq!(VcpuRegisters::parse(""), Err(MissingRegister("CS")));
        let cut = COMPAT.replace("00cffb00 DPL=3", "DPL=3");
        assert_eq!(VcpuRegisters::parse(&cut), Err(MissingRegister("CS")));
    }
}
