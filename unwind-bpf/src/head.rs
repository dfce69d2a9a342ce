//! What each record begins with: of whom it is, of which samples, and why it has no more.

use std::time::Duration;

/// What all records begin with.
pub(crate) struct Head {
    pub(crate) kind: u32,
    pub(crate) origin: Origin,
    pub(crate) count: usize,
    pub(crate) cookie: Cookie,
    pub(crate) end: End,
    pub(crate) flags: u32,
}

impl Head {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (kind, thread, process) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let count = usize::try_from(fields.u32()?).ok()?;
        let cookie = Cookie(fields.u64()?);
        let time = Duration::from_nanos(fields.u64()?);
        let (end, flags) = (End::of(fields.u32()?), fields.u32()?);
        Some(Self { kind, origin: Origin { thread, process, time }, count, cookie, end, flags })
    }
}

/// Which thread, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The thread, by the number that it has in the pid namespace of who has loaded the program: 0 if none.
    pub thread: u32,
    /// Its process, likewise.
    pub process: u32,
    /// Since the machine started, by `CLOCK_MONOTONIC`.
    pub time: Duration,
}

/// What ties samples and their stack together: one for each entry into the kernel in which a stack is
/// asked for. Zero says that there is no user stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(pub u64);

/// Why a stack has no more frames. By the numbers of `bpf/records.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// It is whole.
    Outermost,
    /// As many frames were found as are looked for.
    Depth,
    /// Memory that is not there, or is not resident where it may not be brought in.
    Memory,
    /// The process has executed another program since the sample.
    Exec,
    /// The thread has ended since the sample.
    Exit,
    /// The stack was to be copied, and the ring had no room for that.
    Full,
    /// Too many stacks were walked at the same time.
    Room,
    /// Nothing that is code is mapped where the pc is.
    NoMapping,
    /// Code that is of no file, as a JIT compiler's.
    NoFile,
    /// The table of the file was not there yet.
    Wanted,
    /// The file has no table.
    NoTable,
    /// No row covers the pc.
    NoRow,
    /// A rule that needs registers which are not carried.
    Rule,
    /// A frame that cannot be.
    Cfa,
    /// A return address of zero.
    Zero,
    /// The mappings could not be looked at.
    Busy,
    /// A number of another version.
    Other(u32),
}

impl End {
    const ALL: [Self; 16] = [
        Self::Outermost,
        Self::Depth,
        Self::Memory,
        Self::Exec,
        Self::Exit,
        Self::Full,
        Self::Room,
        Self::NoMapping,
        Self::NoFile,
        Self::Wanted,
        Self::NoTable,
        Self::NoRow,
        Self::Rule,
        Self::Cfa,
        Self::Zero,
        Self::Busy,
    ];

    pub(crate) fn of(number: u32) -> Self {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| Self::ALL.get(at).copied()).unwrap_or(Self::Other(number))
    }
}

/// Reads fields one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*field))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*field))
    }

    pub(crate) fn words(&mut self, count: usize) -> Option<&'a [[u8; 8]]> {
        let (words, _) = self.0.as_chunks();
        let words = words.get(..count)?;
        self.0 = self.0.get(size_of_val(words)..)?;
        Some(words)
    }
}
