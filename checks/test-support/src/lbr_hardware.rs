//! A CPU's last branch record in call-stack mode, register by register.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a wrong access shall end the test, as it would fault"
)]

/// The kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LbrKind {
    /// 16 entries, flags in the source; the source cannot be written unless
    /// sign-extended.
    Haswell,
    /// 16 entries, flags of transactions in the source too.
    HaswellWithTransactions,
    /// 32 entries and a register for flags and cycles.
    Skylake,
    /// Architectural, with this number of entries, which deep idle states lose or keep.
    Architectural {
        /// How many entries there are.
        depth: usize,
        /// Whether a deep idle state empties them.
        lost_in_deep_idle: bool,
    },
}

/// One entry: the three registers as software sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    from: u64,
    to: u64,
    info: u64,
}

/// The record of one CPU, and how often its registers were touched.
#[derive(Clone, Debug)]
pub struct LbrHardware {
    kind: LbrKind,
    entries: Vec<Entry>,
    top: usize,
    recording: bool,
    cycles: u64,
    /// Register accesses so far.
    pub accesses: u64,
}

const FLAGS: u64 = 0b111 << 61;

impl LbrHardware {
    /// A record after reset: empty, and not recording.
    #[must_use]
    pub fn new(kind: LbrKind) -> Self {
        let depth = match kind {
            LbrKind::Haswell | LbrKind::HaswellWithTransactions => 16,
            LbrKind::Skylake => 32,
            LbrKind::Architectural { depth, .. } => depth,
        };
        let entries = vec![Entry::default(); depth];
        Self { kind, entries, top: 0, recording: false, cycles: 0, accesses: 0 }
    }

    /// The registers of `cpuid` with leaf 0x1c that matter: eax and ebx.
    #[must_use]
    pub fn cpuid_1c(&self) -> (u32, u32) {
        let LbrKind::Architectural { depth, lost_in_deep_idle } = self.kind else {
            return (0, 0);
        };
        // Smaller depths are supported as well.
        let depths = (1_u32 << (depth / 8)) - 1;
        (depths | u32::from(lost_in_deep_idle) << 30, 1 << 2)
    }

    fn is_architectural(&self) -> bool {
        matches!(self.kind, LbrKind::Architectural { .. })
    }

    /// Switches recording on or off.
    pub fn record(&mut self, on: bool) {
        self.recording = on;
    }

    /// Time goes by.
    pub fn tick(&mut self, cycles: u64) {
        self.cycles += cycles;
    }

    /// User code calls.
    pub fn call(&mut self, from: u64, to: u64) {
        if !self.recording {
            return;
        }
        let cycles = core::mem::take(&mut self.cycles).min(0xffff);
        // Some calls are mispredicted.
        let mispredicted = (from ^ to) >> 4 & 1;
        let entry = match self.kind {
            // Without transactions bits 61 and 62 are recorded as zeroes.
            LbrKind::Haswell | LbrKind::HaswellWithTransactions => {
                Entry { from: from & !FLAGS | mispredicted << 63, to, info: 0 }
            }
            LbrKind::Skylake => Entry { from, to, info: cycles | mispredicted << 63 },
            LbrKind::Architectural { .. } => {
                Entry { from, to, info: cycles | 1 << 60 | mispredicted << 63 }
            }
        };
        let depth = self.entries.len();
        if self.is_architectural() {
            self.entries.rotate_right(1);
            self.entries[0] = entry;
        } else {
            self.top = (self.top + 1) % depth;
            self.entries[self.top] = entry;
        }
    }

    /// User code returns.
    pub fn ret(&mut self) {
        if !self.recording {
            return;
        }
        self.cycles = 0;
        let depth = self.entries.len();
        if self.is_architectural() {
            self.entries[0] = Entry::default();
            self.entries.rotate_left(1);
        } else {
            self.entries[self.top] = Entry::default();
            self.top = (self.top + depth - 1) % depth;
        }
    }

    /// The CPU sleeps deeply. What that costs depends on the kind.
    pub fn deep_idle(&mut self) {
        if self.kind
            != (LbrKind::Architectural { depth: self.entries.len(), lost_in_deep_idle: false })
        {
            self.entries.fill(Entry::default());
        }
    }

    /// `rdmsr`.
    ///
    /// # Panics
    ///
    /// There is no such register: on the CPU, a general protection fault.
    pub fn read(&mut self, msr: u32) -> u64 {
        self.accesses += 1;
        match self.register(msr) {
            Register::Top => u64::try_from(self.top).unwrap(),
            Register::Depth => u64::try_from(self.entries.len()).unwrap(),
            Register::From(slot) => self.entries[slot].from,
            Register::To(slot) => self.entries[slot].to,
            Register::Info(slot) => self.entries[slot].info,
        }
    }

    /// `wrmsr`.
    ///
    /// # Panics
    ///
    /// There is no such register or it does not take the value: on the CPU, a
    /// general protection fault.
    pub fn write(&mut self, msr: u32, value: u64) {
        self.accesses += 1;
        match self.register(msr) {
            Register::Top => self.top = usize::try_from(value).unwrap() % self.entries.len(),
            Register::Depth => {
                assert_eq!(usize::try_from(value).unwrap(), self.entries.len());
                self.entries.fill(Entry::default());
            }
            Register::From(slot) => {
                if self.kind == LbrKind::Haswell {
                    let sign = if value & 1 << 60 == 0 { 0 } else { 0b11 };
                    assert_eq!(value >> 61 & 0b11, sign, "{value:#x} is not sign-extended");
                }
                self.entries[slot].from = value;
            }
            Register::To(slot) => self.entries[slot].to = value,
            Register::Info(slot) => {
                let reserved = if self.is_architectural() {
                    0x00ff_ffff_ffff_0000
                } else {
                    0x1fff_ffff_ffff_0000
                };
                assert_eq!(value & reserved, 0, "reserved bits in {value:#x}");
                self.entries[slot].info = value;
            }
        }
    }

    fn register(&self, msr: u32) -> Register {
        let depth = u32::try_from(self.entries.len()).unwrap();
        let slot = |base: u32| usize::try_from(msr - base).unwrap();
        let within = |base: u32| (base..base + depth).contains(&msr);
        if self.is_architectural() {
            match msr {
                0x14cf => return Register::Depth,
                _ if within(0x1500) => return Register::From(slot(0x1500)),
                _ if within(0x1600) => return Register::To(slot(0x1600)),
                _ if within(0x1200) => return Register::Info(slot(0x1200)),
                _ => {}
            }
        } else {
            match msr {
                0x1c9 => return Register::Top,
                _ if within(0x680) => return Register::From(slot(0x680)),
                _ if within(0x6c0) => return Register::To(slot(0x6c0)),
                _ if within(0xdc0) && self.kind == LbrKind::Skylake => {
                    return Register::Info(slot(0xdc0));
                }
                _ => {}
            }
        }
        panic!("{:?} has no register {msr:#x}", self.kind);
    }
}

enum Register {
    Top,
    Depth,
    From(usize),
    To(usize),
    Info(usize),
}
