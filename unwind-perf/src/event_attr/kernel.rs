//! What the verdict on an attr depends on besides the attr: the kernel, the PMU and
//! the caller.

use crate::aux_trace::PmuCapabilities;

/// A version of Linux, whose rules hold.
///
/// Each version knows more bits than the one before; an unknown bit is refused. Stable
/// releases have taken over rules of later versions, so that the third number counts.
/// Measured were 6.1.192, 6.12.107, 6.18.44 and 7.2.13. Where a rule began between
/// those, or a later stable release took it over, the one that was measured counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    major: u16,
    minor: u16,
    patch: u16,
}

impl KernelVersion {
    /// Version `major.minor.patch`. Versions before 5.15 have the rules of 5.15.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    const fn is_at_least(self, major: u16, minor: u16) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }

    /// How many bytes of an attr it knows.
    #[must_use]
    pub const fn attr_size(self) -> u32 {
        match self {
            _ if self.is_at_least(7, 0) => 144,
            _ if self.is_at_least(6, 3) => 136,
            _ => 128,
        }
    }

    /// The flags that it knows.
    pub(super) const fn flags(self) -> u64 {
        if self.is_at_least(6, 19) { low_bits(40) } else { low_bits(38) }
    }

    /// The fields of samples that it knows.
    pub(super) const fn sample_type(self) -> u64 {
        low_bits(25)
    }

    /// The parts of counter values that it knows.
    pub(super) const fn read_format(self) -> u64 {
        if self.is_at_least(6, 0) { 0x1f } else { 0xf }
    }

    /// The bits of `branch_sample_type` that it knows.
    pub(super) const fn branch_sample_type(self) -> u64 {
        match self {
            _ if self.is_at_least(6, 8) => low_bits(20),
            _ if self.is_at_least(6, 1) => low_bits(19),
            _ => low_bits(18),
        }
    }

    /// Events have `aux_action`.
    pub(super) const fn has_aux_action(self) -> bool {
        self.is_at_least(6, 12)
    }

    /// Only a caller who may see the kernel hears of changes to its code.
    pub(super) const fn guards_text_pokes(self) -> bool {
        match (self.major, self.minor) {
            (6, 1) => self.patch >= 192,
            _ => self.is_at_least(6, 19),
        }
    }

    /// Only a caller who may see the kernel gets its part of call chains.
    pub(super) const fn guards_kernel_chains(self) -> bool {
        self.is_at_least(7, 0)
    }

    /// Inherited events may have counter values in samples, if these name the thread.
    pub(super) const fn reads_inherited(self) -> bool {
        self.is_at_least(6, 12)
    }
}

/// The `count` lowest bits.
const fn low_bits(count: u32) -> u64 {
    match 1_u64.checked_shl(count) {
        Some(end) => end.wrapping_sub(1),
        None => u64::MAX,
    }
}

/// What the PMU of an event can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pmu {
    /// It interrupts when a counter overflows, so that it can sample.
    pub samples: bool,
    /// Its samples never come in an NMI, so that they can have any clock's time.
    pub without_nmi: bool,
    /// It records branches.
    pub branches: bool,
    /// Samples can have vector registers.
    pub vector_registers: bool,
    /// It counts whatever runs: no mode can be left out.
    pub counts_all: bool,
    /// What it can do in AUX tracing.
    pub aux: PmuCapabilities,
}

impl Pmu {
    /// Linux's own software events: clocks, page faults, context switches.
    pub const SOFTWARE: Self = Self {
        samples: true,
        without_nmi: true,
        branches: false,
        vector_registers: false,
        counts_all: false,
        aux: PmuCapabilities::NONE,
    };

    /// The counters of a CPU that records branches.
    pub const CPU: Self = Self {
        samples: true,
        without_nmi: false,
        branches: true,
        vector_registers: true,
        counts_all: false,
        aux: PmuCapabilities::NONE,
    };
}

/// Who opens an event, and what the system's settings allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Caller {
    /// May look at the kernel: `CAP_PERFMON`, or `kernel.perf_event_paranoid` at most 1.
    pub may_see_kernel: bool,
    /// Has `CAP_PERFMON`, or `CAP_SYS_ADMIN`.
    pub is_privileged: bool,
    /// The highest sampling frequency, in hertz: `kernel.perf_event_max_sample_rate`.
    pub max_frequency: u64,
    /// The longest call chain, in addresses: `kernel.perf_event_max_stack`.
    pub max_stack: u16,
    /// The event counts for one task, rather than for all of a CPU.
    pub has_task: bool,
}

impl Caller {
    /// A user without rights, by Linux's default settings, for a task of their own.
    pub const USER: Self = Self {
        may_see_kernel: false,
        is_privileged: false,
        max_frequency: 100_000,
        max_stack: 127,
        has_task: true,
    };

    /// The same user with `CAP_PERFMON`.
    pub const PRIVILEGED: Self = Self { may_see_kernel: true, is_privileged: true, ..Self::USER };

    /// The same with other limits: hertz, and addresses of a call chain.
    #[must_use]
    pub const fn limits(mut self, max_frequency: u64, max_stack: u16) -> Self {
        self.max_frequency = max_frequency;
        self.max_stack = max_stack;
        self
    }

    /// The same for an event of all tasks of a CPU.
    #[must_use]
    pub const fn without_task(mut self) -> Self {
        self.has_task = false;
        self
    }
}
