//! What a compact table cannot say.

use core::fmt;

/// Why code has no row in a compact table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactOmissionReason {
    /// The CFA is loaded from memory at another register than the stack or frame pointer.
    CfaRegister,
    /// The return address is found from another register than these.
    RaRegister,
    /// The frame pointer is found from another register than these.
    FpRegister,
    /// The row holds in one frame alone: the CFA is on [another
    /// stack](unwind_core::Row::other_stack), or [more has to be known](unwind_core::Row::needs).
    OneFrame,
    /// There are 65,535 other rules already.
    TooManyRules,
    /// The address is 2^48 or more.
    Address,
    /// The table or the call frame information that was to be added is malformed there.
    Malformed,
    /// It is an expression, or something else that no row says.
    NoRow,
    /// So much code shares its rows that there would be far more of them than the bytes that they
    /// come from.
    SharedRows,
}

impl CompactOmissionReason {
    /// All of them, in the order of their counts.
    const ALL: [Self; 9] = [
        Self::CfaRegister,
        Self::RaRegister,
        Self::FpRegister,
        Self::OneFrame,
        Self::TooManyRules,
        Self::Address,
        Self::Malformed,
        Self::NoRow,
        Self::SharedRows,
    ];

    /// A short name, to count reasons by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CfaRegister => "cfa-register",
            Self::RaRegister => "ra-register",
            Self::FpRegister => "fp-register",
            Self::OneFrame => "one-frame",
            Self::TooManyRules => "too-many-rules",
            Self::Address => "address",
            Self::Malformed => "malformed",
            Self::NoRow => "no-row",
            Self::SharedRows => "shared-rows",
        }
    }
}

impl fmt::Display for CompactOmissionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CfaRegister => "the cfa is loaded from where another register points",
            Self::RaRegister => "the return address is found from another register",
            Self::FpRegister => "the frame pointer is found from another register",
            Self::OneFrame => "the row holds in one frame alone",
            Self::TooManyRules => "the table has no room for another rule",
            Self::Address => "the address is 2^48 or more",
            Self::Malformed => "what the rows come from is malformed",
            Self::NoRow => "no row says it",
            Self::SharedRows => "too much code shares its rows",
        })
    }
}

/// How much code is lost for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactOmission {
    /// Ranges of code.
    pub ranges: u64,
    /// Their length in bytes, as far as it is known.
    pub bytes: u64,
}

/// What was added to a `CompactBuilder` and is in no row, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactOmissions {
    counts: [CompactOmission; CompactOmissionReason::ALL.len()],
}

impl CompactOmissions {
    /// The reasons for which anything is lost, and how much.
    pub fn iter(&self) -> impl Iterator<Item = (CompactOmissionReason, CompactOmission)> + use<> {
        let counts = CompactOmissionReason::ALL.into_iter().zip(self.counts);
        counts.filter(|(_, count)| count.ranges != 0)
    }

    /// How much is lost for this reason.
    #[must_use]
    pub fn of(&self, reason: CompactOmissionReason) -> CompactOmission {
        self.iter().find(|(other, _)| *other == reason).map(|(_, count)| count).unwrap_or_default()
    }

    /// Whether nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Notes that code of this length is lost.
    #[cfg(feature = "write")]
    pub(crate) fn add(&mut self, reason: CompactOmissionReason, bytes: u64) {
        let mut counts = CompactOmissionReason::ALL.into_iter().zip(&mut self.counts);
        if let Some((_, count)) = counts.find(|(other, _)| *other == reason) {
            count.ranges = count.ranges.saturating_add(1);
            count.bytes = count.bytes.saturating_add(bytes);
        }
    }
}
