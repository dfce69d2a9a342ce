//! The registers that record branches: which there are and what they hold.

use super::branch::{Branch, BranchInfo, RawBranch};

/// Access to the model-specific registers of the CPU that this runs on.
pub trait Msrs {
    /// `rdmsr`.
    fn read(&mut self, msr: u32) -> u64;

    /// `wrmsr`.
    fn write(&mut self, msr: u32, value: u64);
}

const LEGACY_TOP: u32 = 0x1c9;
const LEGACY_FROM: u32 = 0x680;
const LEGACY_TO: u32 = 0x6c0;
const LEGACY_INFO: u32 = 0xdc0;
const ARCH_DEPTH: u32 = 0x14cf;
const ARCH_INFO: u32 = 0x1200;
const ARCH_FROM: u32 = 0x1500;
const ARCH_TO: u32 = 0x1600;

/// What kind of branch record a CPU has, in call-stack mode: a call adds an
/// entry, a return removes the newest one, and what does not fit falls off at
/// the old end.
///
/// | | Haswell | Skylake | architectural |
/// |---|---|---|---|
/// | entries | 16 | 32 | up to 32 |
/// | the newest | at the top register | at the top register | at 0 |
/// | flags | in the source address | in a register | in a register |
/// | cycles | no | yes | if it says so |
///
/// The addresses are in *Intel SDM* volume 4; call-stack mode is in volume 3,
/// "Last Branch Records".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lbr {
    depth: u32,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// No register for flags, which are in the highest bits of the source.
    /// Without transactions they need care.
    FlagsInSource { transactions: bool },
    /// A register for flags and cycles.
    Info,
    /// Architectural: a register for flags and cycles, and no top register.
    Architectural { lost_in_deep_idle: bool },
}

impl Lbr {
    /// How many entries a record has at most.
    pub const MAX_DEPTH: usize = 32;

    /// Haswell and Broadwell: format 4 in `IA32_PERF_CAPABILITIES`.
    /// `transactions` is whether the CPU has TSX, and has it enabled.
    #[must_use]
    pub const fn haswell(transactions: bool) -> Self {
        Self { depth: 16, format: Format::FlagsInSource { transactions } }
    }

    /// Skylake to Rocket Lake: format 5 or 7 in `IA32_PERF_CAPABILITIES`.
    #[must_use]
    pub const fn skylake() -> Self {
        Self { depth: 32, format: Format::Info }
    }

    /// Architectural LBRs, from the registers that `cpuid` with leaf 0x1c
    /// gives; `None` if they have no call-stack mode.
    ///
    /// Takes the largest depth there is up to [`MAX_DEPTH`](Self::MAX_DEPTH).
    #[must_use]
    pub fn architectural(eax: u32, ebx: u32) -> Option<Self> {
        const CALL_STACK_MODE: u32 = 1 << 2;
        const LOST_IN_DEEP_IDLE: u32 = 1 << 30;
        // Bit n stands for a depth of 8 (n + 1).
        let depth = [(3, 32), (2, 24), (1, 16), (0, 8)]
            .into_iter()
            .find_map(|(bit, depth)| (eax & (1 << bit) != 0).then_some(depth))?;
        let lost_in_deep_idle = eax & LOST_IN_DEEP_IDLE != 0;
        let format = Format::Architectural { lost_in_deep_idle };
        (ebx & CALL_STACK_MODE != 0).then_some(Self { depth, format })
    }

    /// How many entries the record has.
    #[must_use]
    pub const fn depth(self) -> u32 {
        self.depth
    }

    /// Whether an entry stays in the register in which it was recorded, so
    /// that the number of the register says something.
    pub(super) const fn has_top(self) -> bool {
        !matches!(self.format, Format::Architectural { .. })
    }

    /// Whether there is a register to which a stamp can be written.
    pub(super) const fn has_info(self) -> bool {
        !matches!(self.format, Format::FlagsInSource { .. })
    }

    /// Removes every entry.
    pub(super) fn reset(self, msrs: &mut impl Msrs) {
        if self.has_top() {
            for slot in 0..self.depth {
                self.write(msrs, slot, RawBranch::default());
            }
        } else {
            msrs.write(ARCH_DEPTH, self.depth.into());
        }
    }

    /// Which register holds the newest entry.
    pub(super) fn top(self, msrs: &mut impl Msrs) -> u32 {
        if self.has_top() { self.slot_of(msrs.read(LEGACY_TOP)) } else { 0 }
    }

    pub(super) fn set_top(self, msrs: &mut impl Msrs, top: u32) {
        if self.has_top() {
            msrs.write(LEGACY_TOP, top.into());
        }
    }

    /// Which register holds the entry that is `age` entries older than the
    /// newest one.
    pub(super) fn slot(self, top: u32, age: u32) -> u32 {
        if self.has_top() { self.slot_of(u64::from(top.wrapping_sub(age))) } else { age }
    }

    /// Depths with a top register are powers of two.
    fn slot_of(self, number: u64) -> u32 {
        let mask = u64::from(self.depth.wrapping_sub(1));
        u32::try_from(number & mask).unwrap_or(0)
    }

    /// The entry in a register, or `None` if there is none.
    pub(super) fn read(self, msrs: &mut impl Msrs, slot: u32) -> Option<RawBranch> {
        let (from, to, info) = self.addresses(slot);
        let from = msrs.read(from);
        if from == 0 {
            return None;
        }
        let to = msrs.read(to);
        let info = info.map_or(0, |info| msrs.read(info));
        Some(RawBranch { from, to, info })
    }

    pub(super) fn write(self, msrs: &mut impl Msrs, slot: u32, branch: RawBranch) {
        let (from, to, info) = self.addresses(slot);
        msrs.write(from, self.written_source(branch.from));
        msrs.write(to, branch.to);
        if let Some(info) = info {
            msrs.write(info, branch.info);
        }
    }

    pub(super) fn write_info(self, msrs: &mut impl Msrs, slot: u32, bits: u64) {
        if let (_, _, Some(info)) = self.addresses(slot) {
            msrs.write(info, bits);
        }
    }

    /// Whether the record was lost while the CPU slept, seen where a task that
    /// has not run since had its newest entry.
    pub(super) fn is_lost(self, msrs: &mut impl Msrs, top: u32) -> bool {
        let survives = Format::Architectural { lost_in_deep_idle: false };
        self.format != survives && self.read(msrs, self.slot(top, 0)).is_none()
    }

    /// What an entry means.
    pub(super) fn decode(self, raw: RawBranch) -> Branch {
        let (from, info) = match self.format {
            Format::FlagsInSource { transactions } => {
                let meant = if transactions { BranchInfo::FLAGS } else { MISPREDICTED };
                (sign_extended(raw.from), raw.from & meant)
            }
            Format::Info | Format::Architectural { .. } => (raw.from, raw.info),
        };
        Branch { from, to: raw.to, info: BranchInfo::from_bits(info) }
    }

    /// What to write so that the register holds `from`.
    ///
    /// Without transactions, hardware records zeroes in bits 61 and 62 but
    /// takes only what is sign-extended there.
    fn written_source(self, from: u64) -> u64 {
        match self.format {
            Format::FlagsInSource { transactions: false } => {
                from | ((from & SIGN_BELOW_FLAGS) << 2)
            }
            _ => from,
        }
    }

    /// The registers of an entry: source, target, information.
    fn addresses(self, slot: u32) -> (u32, u32, Option<u32>) {
        let (from, to, info) = match self.format {
            Format::FlagsInSource { .. } => (LEGACY_FROM, LEGACY_TO, None),
            Format::Info => (LEGACY_FROM, LEGACY_TO, Some(LEGACY_INFO)),
            Format::Architectural { .. } => (ARCH_FROM, ARCH_TO, Some(ARCH_INFO)),
        };
        let at = |base: u32| base.wrapping_add(slot);
        (at(from), at(to), info.map(at))
    }
}

const MISPREDICTED: u64 = 1 << 63;
/// Bits 59 and 60: with flags in bits 61 to 63 they are the sign's.
const SIGN_BELOW_FLAGS: u64 = 0b11 << 59;

/// An address whose highest three bits hold flags.
fn sign_extended(from: u64) -> u64 {
    let address = from & !BranchInfo::FLAGS;
    if from & (1 << 60) != 0 { address | BranchInfo::FLAGS } else { address }
}
