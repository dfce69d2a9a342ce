//! What to sample, and how.

/// What to sample, and how.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    /// Samples a second of CPU time.
    pub(crate) rate: u32,
    pub(crate) user_stacks: UserStacks,
    /// Whether samples are taken when a CPU switches away from a thread, too.
    pub(crate) off_cpu: bool,
    pub(crate) ring: RingSize,
    pub(crate) whom: Whom,
}

/// Where the user part of a sample's stack comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UserStacks {
    /// Registers and a copy of the stack, which are walked later.
    Copied(Copies),
    /// The kernel, which walks along frame pointers when the thread returns to user code. A
    /// record of its own has what it finds.
    Deferred,
}

/// Copies of user stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) sizes: CopySizes,
    /// Whether samples have the kernel's chain of user frames, too.
    pub(crate) with_chains: bool,
}

/// The sizes that copies of user stacks may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopySizes {
    /// In bytes, ascending; at least one.
    pub(crate) bytes: Vec<u32>,
    /// The place of the size of the first samples. Later ones have the size that
    /// [`Engine::copy`](super::engine::Engine::copy) says.
    pub(crate) first: usize,
}

impl CopySizes {
    /// This one alone.
    pub(crate) fn one(bytes: u32) -> Self {
        Self { bytes: vec![bytes], first: 0 }
    }

    /// Whether there is no other size than the first.
    pub(crate) fn is_one(&self) -> bool {
        self.bytes.len() < 2
    }

    /// Bytes of a copy of the first samples.
    pub(crate) fn first_bytes(&self) -> u32 {
        self.bytes.get(self.first).copied().unwrap_or(0)
    }
}

impl UserStacks {
    /// The sizes of copies. Where none are made, none has more than 0 bytes.
    pub(crate) fn sizes(&self) -> CopySizes {
        match self {
            Self::Copied(copies) => copies.sizes.clone(),
            Self::Deferred => CopySizes::one(0),
        }
    }
}

/// Bytes of the ring of each CPU, a power of two of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingSize {
    Exactly(usize),
    /// As many, or the most that this user may lock in memory.
    AtMost(usize),
}

/// Whose samples are taken.
#[derive(Clone, Debug)]
pub(crate) enum Whom {
    /// Those of this process, from the command on that it executes next, and of its children.
    Command(i32),
    /// Those of these threads, and of what they start.
    Threads(Vec<i32>),
    All,
}
