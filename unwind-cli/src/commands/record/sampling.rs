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
    /// Bytes that a sample has at most, ascending.
    pub(crate) sizes: Vec<u32>,
    /// The place of the size of the first samples. Later ones have the size that
    /// [`Engine::copy`](super::engine::Engine::copy) says.
    pub(crate) first: usize,
    /// Whether samples have the kernel's chain of user frames, too.
    pub(crate) with_chains: bool,
}

impl Copies {
    /// Bytes of a copy of the first samples.
    pub(crate) fn first_size(&self) -> u32 {
        self.sizes.get(self.first).copied().unwrap_or(0)
    }
}

impl UserStacks {
    /// Bytes of a copy: the sizes there are, and the place of that of the first samples.
    pub(crate) fn sizes(&self) -> (&[u32], usize) {
        match self {
            Self::Copied(copies) => (&copies.sizes, copies.first),
            Self::Deferred => (&[0], 0),
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
