//! A file of snapshots, read.

use std::ops::Range;

use crate::{Error, MAGIC, VERSION, WHOLE, kind};

/// All that a file holds, borrowed from its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording<'a> {
    /// The files with code.
    pub images: Vec<Image<'a>>,
    /// What was mapped, in each state of each process.
    pub spaces: Vec<Space>,
    /// The stacks, in the order of the file, which is that of time.
    pub snapshots: Vec<Snapshot<'a>>,
    /// The call frame information that the file brings along.
    pub cfi: Vec<Cfi<'a>>,
}

/// A file with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image<'a> {
    /// What the linker left to identify it; empty if it left nothing.
    pub build_id: &'a [u8],
    /// Where it was, or a name in brackets if it was no file.
    pub path: &'a [u8],
}

/// The code of an address space, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Ranges that do not overlap.
    pub mappings: Vec<Mapping>,
}

/// One range of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// How far the image is loaded above its link-time addresses, wrapping.
    pub bias: u64,
    /// The index of the image.
    pub image: u32,
}

/// One thread at one point of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot<'a> {
    /// The index of its address space.
    pub space: u32,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// When, in nanoseconds of a clock that does not go back.
    pub time: u64,
    /// The instruction pointer.
    pub rip: u64,
    /// The general registers in the order of their DWARF numbers: rax, rdx,
    /// rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    pub gpr: [u64; 16],
    /// Whether the stack bytes reach to the end of the stack.
    pub is_whole: bool,
    /// The address of the first stack byte.
    pub stack_start: u64,
    /// The bytes from there on.
    pub stack: &'a [u8],
}

impl Snapshot<'_> {
    /// The stack pointer.
    #[must_use]
    pub const fn rsp(&self) -> u64 {
        let [_, _, _, _, _, _, _, rsp, ..] = self.gpr;
        rsp
    }

    /// The frame pointer.
    #[must_use]
    pub const fn rbp(&self) -> u64 {
        let [_, _, _, _, _, _, rbp, ..] = self.gpr;
        rbp
    }
}

/// The call frame information of an image, or the part of it that is of use
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfi<'a> {
    /// The index of the image.
    pub image: u32,
    /// The link-time address of the bytes.
    pub addr: u64,
    /// `.eh_frame`.
    pub eh_frame: &'a [u8],
}

impl<'a> Recording<'a> {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error`] for the first record that is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(Error::NotSnapshots)?;
        let mut fields = Fields { bytes: rest, at: 0 };
        match fields.u32()? {
            VERSION => {}
            version => return Err(Error::Version(version)),
        }
        let mut recording = Self::default();
        while !fields.bytes.is_empty() {
            fields.at = bytes.len().saturating_sub(fields.bytes.len());
            let (kind, len) = (fields.u32()?, fields.u32()?);
            let body = fields.take(usize::try_from(len).unwrap_or(usize::MAX))?;
            recording.add(kind, Fields { bytes: body, at: fields.at })?;
        }
        Ok(recording)
    }

    fn add(&mut self, kind: u32, mut body: Fields<'a>) -> Result<(), Error> {
        match kind {
            kind::IMAGE => {
                let [len] = body.array()?;
                let build_id = body.take(len.into())?;
                self.images.push(Image { build_id, path: body.bytes });
            }
            kind::SPACE => {
                let space = self.space(body)?;
                self.spaces.push(space);
            }
            kind::SNAPSHOT => {
                let snapshot = body.snapshot()?;
                let known = usize::try_from(snapshot.space).is_ok_and(|i| i < self.spaces.len());
                if !known {
                    return Err(Error::NoSpace { at: body.at, index: snapshot.space });
                }
                self.snapshots.push(snapshot);
            }
            kind::CFI => {
                let (image, _) = (body.u32()?, body.u32()?);
                self.check_image(&body, image)?;
                self.cfi.push(Cfi { image, addr: body.u64()?, eh_frame: body.bytes });
            }
            _ => {}
        }
        Ok(())
    }

    fn space(&self, mut body: Fields<'a>) -> Result<Space, Error> {
        let mut space = Space::default();
        let mut last = 0;
        while !body.bytes.is_empty() {
            let (start, end, bias) = (body.u64()?, body.u64()?, body.u64()?);
            let (image, _) = (body.u32()?, body.u32()?);
            self.check_image(&body, image)?;
            if start < last || end <= start {
                return Err(Error::BadRange { at: body.at });
            }
            last = end;
            space.mappings.push(Mapping { range: start..end, bias, image });
        }
        Ok(space)
    }

    fn check_image(&self, body: &Fields<'_>, index: u32) -> Result<(), Error> {
        match usize::try_from(index) {
            Ok(image) if image < self.images.len() => Ok(()),
            _ => Err(Error::NoImage { at: body.at, index }),
        }
    }

    /// The address space of a snapshot of this file.
    #[must_use]
    pub fn space_of(&self, snapshot: &Snapshot<'_>) -> Option<&Space> {
        self.spaces.get(usize::try_from(snapshot.space).ok()?)
    }
}

/// What is left of a record.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Where the record starts in the file.
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            self.bytes.split_at_checked(len).ok_or(Error::Truncated { at: self.at })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) =
            self.bytes.split_first_chunk().ok_or(Error::Truncated { at: self.at })?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn snapshot(&mut self) -> Result<Snapshot<'a>, Error> {
        let [space, process, thread, flags] = [self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let (time, rip) = (self.u64()?, self.u64()?);
        let mut gpr = [0; 16];
        for register in &mut gpr {
            *register = self.u64()?;
        }
        let stack_start = self.u64()?;
        let (is_whole, stack) = (flags & WHOLE != 0, self.bytes);
        Ok(Snapshot { space, process, thread, time, rip, gpr, is_whole, stack_start, stack })
    }
}
