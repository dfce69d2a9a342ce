//! The tables that the program walks by.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::Interpreter;
use crate::kernel::{Attr, Command, Shared};
use crate::record::FileKey;

/// The tables of a [`Walker`](crate::Walker), by file. They are gone with it and with all values of this type.
#[derive(Debug)]
pub struct Tables {
    files: OwnedFd,
    images: OwnedFd,
    interpreters: OwnedFd,
    /// How many images there are.
    count: Arc<AtomicU32>,
}

/// A table of a file: how its frames are walked, and where its bytes are mapped to.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The image, as the module `compact` of `unwind-sframe` makes it: whole words of eight bytes.
    pub image: &'a [u8],
    /// Its loaded parts with code, at most [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    pub segments: &'a [Segment],
    /// The interpreter that it has, if it has one whose calls are to be read, and its place among all: what
    /// [`Calls`](crate::Calls) name it by.
    pub interpreter: Option<(u32, Interpreter)>,
}

impl Table<'_> {
    /// Loaded parts of a file that are told apart.
    pub const MAX_SEGMENTS: usize = 4;
}

/// A loaded part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The bytes of the file: `p_offset` of its program header.
    pub from: u64,
    /// Where these end.
    pub to: u64,
    /// The address that the first has in the image: `p_vaddr`.
    pub address: u64,
}

/// Why a table is not installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There are as many as the program has room for.
    #[error("there are {0} tables already")]
    TooMany(u32),
    /// There are no whole words, or no header.
    #[error("an image of {0} bytes")]
    NoImage(usize),
    /// The kernel refuses it.
    #[error("the kernel does not take the table: {0}")]
    Refused(#[source] io::Error),
}

impl Tables {
    /// Files with tables at most.
    const MAX_FILES: u32 = 4096;

    pub(crate) fn new([files, images, interpreters]: [OwnedFd; 3], count: Arc<AtomicU32>) -> Self {
        Self { files, images, interpreters, count }
    }

    /// Has walks use this table for a file from now on.
    ///
    /// # Errors
    ///
    /// [`TableError`]; the file has no table then.
    pub fn install(&self, file: FileKey, table: Table<'_>) -> Result<(), TableError> {
        let installed = self.install_image(table.image);
        let (state, image) = match &installed {
            Ok(image) => (FileState::HasTable, *image),
            Err(_) => (FileState::HasNone, 0),
        };
        let interpreter = table.interpreter.map_or(0, |(at, it)| self.install_interpreter(at, &it));
        let put = self.put_file(file, state, [image, interpreter], table.segments);
        installed?;
        put.map_err(TableError::Refused)
    }

    /// Has walks know that a file has no table.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn refuse(&self, file: FileKey) -> io::Result<()> {
        self.put_file(file, FileState::HasNone, [0, 0], &[])
    }

    /// Has walks ask once more for the table of a file that could not be looked at.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn forget(&self, file: FileKey) -> io::Result<()> {
        Attr::new().fd(0, self.files.as_fd()).bytes(8, &file.bytes()).act(Command::MAP_DELETE)
    }

    fn put_file(
        &self,
        file: FileKey,
        state: FileState,
        [image, interpreter]: [u32; 2],
        segments: &[Segment],
    ) -> io::Result<()> {
        let segments = segments.get(..Table::MAX_SEGMENTS).unwrap_or(segments);
        let count = u32::try_from(segments.len()).unwrap_or(0);
        let head = [state.number(), image, count, interpreter];
        let mut value: Vec<u8> = head.iter().flat_map(|field| field.to_ne_bytes()).collect();
        for segment in segments {
            let delta = segment.address.wrapping_sub(segment.from);
            value.extend([segment.from, segment.to, delta].iter().flat_map(|it| it.to_ne_bytes()));
        }
        value.resize(16_usize.saturating_add(Table::MAX_SEGMENTS.saturating_mul(24)), 0);
        Attr::new()
            .fd(0, self.files.as_fd())
            .bytes(8, &file.bytes())
            .bytes(16, &value)
            .act(Command::MAP_UPDATE)
    }

    /// Has calls of an interpreter read. Returns what files with it say. Where the kernel has no room for it, walks that
    /// come there find none at its place, and tell that calls may be missing.
    fn install_interpreter(&self, place: u32, interpreter: &Interpreter) -> u32 {
        let (key, value) = (place.to_ne_bytes(), interpreter.bytes());
        let attr = Attr::new().fd(0, self.interpreters.as_fd()).bytes(8, &key).bytes(16, &value);
        let _ = attr.act(Command::MAP_UPDATE);
        interpreter.number(place)
    }

    /// Puts an image into a map of its own. Returns its place.
    fn install_image(&self, image: &[u8]) -> Result<u32, TableError> {
        const ARRAY: u32 = 2;
        const MAPPABLE_INNER_MAP: u32 = 1 << 10 | 1 << 12;
        const HEADER: usize = 4;
        let (words, rest) = image.as_chunks::<8>();
        let count = u32::try_from(words.len()).ok().filter(|_| words.len() > HEADER);
        let (Some(count), []) = (count, rest) else {
            return Err(TableError::NoImage(image.len()));
        };
        let attr = Attr::new().u32(0, ARRAY).u32(4, 4).u32(8, 8).u32(12, count);
        let attr = attr.u32(16, MAPPABLE_INNER_MAP).name(28, "unwind_tabl");
        let map = attr.open(Command::MAP_CREATE).map_err(TableError::Refused)?;
        let bytes = image.len().next_multiple_of(4096);
        let shared = Shared::map(map.as_fd(), bytes, 0, true).map_err(TableError::Refused)?;
        for (place, &word) in shared.words().iter().zip(words) {
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        // A place is used once: walks keep what they have found at it.
        let next = |count: u32| (count < Self::MAX_FILES).then(|| count.saturating_add(1));
        let place = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let place = place.map_err(TableError::TooMany)?;
        let (key, value) = (place.to_ne_bytes(), std::os::fd::AsRawFd::as_raw_fd(&map));
        let value = value.to_ne_bytes();
        let attr = Attr::new().fd(0, self.images.as_fd()).bytes(8, &key).bytes(16, &value);
        attr.act(Command::MAP_UPDATE).map_err(TableError::Refused)?;
        Ok(place)
    }
}

/// What is known of a file's table, by the numbers of `bpf/records.h`.
#[derive(Clone, Copy, Debug)]
enum FileState {
    HasTable,
    HasNone,
}

impl FileState {
    const fn number(self) -> u32 {
        match self {
            Self::HasTable => 1,
            Self::HasNone => 2,
        }
    }
}
