//! The chain of calls that the demonstration walks: a shared object, compiled from C,
//! that this program carries with it, writes to a file and loads.
#![expect(unsafe_code, reason = "code that is loaded at run time is called")]

use std::error::Error as _;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libloading::{Library, Symbol};
use serde::{Deserialize, Serialize};
use unwind_target::untrusted::escaped;

/// The object that the build script compiled, where it could.
const COMPILED: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/compiled.rs"));

/// The same, compiled beforehand.
const PREBUILT: &[u8] = include_bytes!("prebuilt/chain.so");

/// The functions of the chain, innermost first.
const FUNCTIONS: [&str; 12] = [
    "park", "small", "through", "descend", "descend", "descend", "align", "grow", "table",
    "spread", "enter", "start",
];

/// Which of the two builds of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Each function keeps a frame pointer.
    FramePointers,
    /// rbp is one more register for data.
    NoFramePointers,
}

impl Kind {
    /// What the names of its functions begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::FramePointers => "fp",
            Self::NoFramePointers => "nofp",
        }
    }

    /// The option that made it so.
    pub(crate) const fn compiler_option(self) -> &'static str {
        match self {
            Self::FramePointers => "-fno-omit-frame-pointer",
            Self::NoFramePointers => "-fomit-frame-pointer",
        }
    }
}

/// A frame as the chain itself knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrueFrame {
    /// The function that it belongs to.
    pub(crate) function: String,
    /// Where it continues: the return address that its callee found; none of the
    /// innermost frame.
    pub(crate) pc: Option<u64>,
    /// Its CFA; none of the outermost frame.
    pub(crate) cfa: Option<u64>,
}

/// What a chain notes on its way. `struct witness` in chain.h has the same
/// layout.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Witness {
    fd: i32,
    parked: AtomicU32,
    depth: AtomicU32,
    /// Outermost first.
    frames: [WitnessFrame; 32],
}

#[derive(Debug, Default)]
#[repr(C)]
struct WitnessFrame {
    return_address: AtomicU64,
    cfa: AtomicU64,
}

impl Witness {
    /// A chain with this witness waits until standard input is at its end.
    pub(crate) fn waiting() -> Self {
        Self::new(libc::STDIN_FILENO)
    }

    /// A chain with this witness does not wait.
    pub(crate) fn passing() -> Self {
        Self::new(-1)
    }

    fn new(fd: i32) -> Self {
        Self { fd, parked: 0.into(), depth: 0.into(), frames: Default::default() }
    }

    /// Whether the chain has reached its innermost function, where it waits.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire) == 1
    }

    /// The frames of a chain that is parked, innermost first; `None` if it is
    /// not the chain that is known.
    pub(crate) fn frames(&self, kind: Kind) -> Option<Vec<TrueFrame>> {
        let depth = usize::try_from(self.depth.load(Ordering::Relaxed)).ok()?;
        // All but the first function note a frame.
        if !self.is_parked() || depth.checked_add(1)? != FUNCTIONS.len() {
            return None;
        }
        let noted = self.frames.get(..depth)?.iter().rev();
        // A function's CFA is its own, its return address is its caller's pc.
        let cfas = noted.clone().map(|frame| Some(frame.cfa.load(Ordering::Relaxed)));
        let pcs = noted.map(|frame| Some(frame.return_address.load(Ordering::Relaxed)));
        let frames = FUNCTIONS.iter().zip([None].into_iter().chain(pcs)).zip(cfas.chain([None]));
        Some(
            frames
                .map(|((function, pc), cfa)| TrueFrame {
                    function: format!("{}_{function}", kind.prefix()),
                    pc,
                    cfa,
                })
                .collect(),
        )
    }
}

/// Which object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// What the build script compiled, or the prebuilt one if it could not.
    Default,
    /// The prebuilt one.
    Prebuilt,
}

impl Object {
    const fn bytes(self) -> &'static [u8] {
        match (self, COMPILED) {
            (Self::Default, Some(bytes)) => bytes,
            _ => PREBUILT,
        }
    }

    /// Whether the build script compiled it.
    pub(crate) const fn is_compiled(self) -> bool {
        matches!((self, COMPILED), (Self::Default, Some(_)))
    }
}

/// Why the chain cannot be called.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// Its file could not be written.
    #[error("cannot write {}: {error}; set TMPDIR to another directory", escaped(path))]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// Its file could not be loaded.
    #[error(
        "cannot load the chain: {text}; if that file system runs no code, set TMPDIR to another directory"
    )]
    Load {
        /// Why not, with its path.
        text: String,
    },
}

/// The loaded chain.
pub(crate) struct Chain {
    library: Library,
    /// Removed when the chain is not needed any more: whoever reads the stack
    /// reads its tables.
    file: ChainFile,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("library", &self.library).field("file", &self.file).finish()
    }
}

impl Chain {
    /// Writes the object to a file of its own and loads it.
    ///
    /// # Errors
    ///
    /// [`ChainError`].
    pub(crate) fn load(object: Object) -> Result<Self, ChainError> {
        let file = ChainFile::write(object.bytes())?;
        let path = file.path();
        // SAFETY: the object has neither initialisers nor finalisers, needs no
        // other object, and no other user can write to its directory.
        let library = unsafe { Library::new(&path) };
        let library = library.map_err(|error| load_error(&error))?;
        Ok(Self { library, file })
    }

    /// Calls down the chain, and returns what it computes from `input`.
    ///
    /// # Errors
    ///
    /// [`ChainError::Load`] if the object does not have this chain.
    pub(crate) fn call(
        &self,
        kind: Kind,
        witness: &Witness,
        input: u64,
    ) -> Result<u64, ChainError> {
        type Start = unsafe extern "C" fn(*const Witness, u64) -> u64;
        let name = format!("{}_start", kind.prefix());
        // SAFETY: chain.c defines the function with this type.
        let start: Result<Symbol<'_, Start>, _> = unsafe { self.library.get(&name) };
        let start = start.map_err(|error| load_error(&error))?;
        // SAFETY: the witness lives through the call and may be written to:
        // every field that the chain writes is atomic, and only one chain has
        // this witness. What others read of it they read after `parked`.
        Ok(unsafe { start(witness, input) })
    }
}

/// The error itself says no more than which call failed.
fn load_error(error: &libloading::Error) -> ChainError {
    let source = error.source().map(|source| format!(": {source}"));
    ChainError::Load { text: format!("{error}{}", source.unwrap_or_default()) }
}

/// A file with the object in a directory that only this user may enter.
#[derive(Debug)]
struct ChainFile {
    directory: PathBuf,
}

impl ChainFile {
    fn write(bytes: &[u8]) -> Result<Self, ChainError> {
        let directory = std::env::temp_dir().join(format!("unwind-demo-{}", std::process::id()));
        let result = DirBuilder::new().mode(0o700).create(&directory);
        result.map_err(|error| ChainError::Write { path: directory.clone(), error })?;
        let file = Self { directory };
        let path = file.path();
        let result = write_new(&path, bytes);
        result.map_err(|error| ChainError::Write { path, error })?;
        Ok(file)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("chain.so")
    }
}

impl Drop for ChainFile {
    fn drop(&mut self) {
        // There is no one left to tell of a failure.
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(&self.directory);
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::FramePointers, Kind::NoFramePointers];

    /// Loads both objects in turn: their files have the same name.
    fn with_each_object(mut check: impl FnMut(&Chain)) {
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _lock = ONE_AT_A_TIME.lock().unwrap();
        for object in [Object::Default, Object::Prebuilt] {
            check(&Chain::load(object).unwrap());
        }
    }

    #[test]
    fn every_build_of_the_chain_computes_the_same_and_depends_on_its_input() {
        let mut results = [Vec::new(), Vec::new()];
        with_each_object(|chain| {
            for kind in KINDS {
                for (input, results) in [7, 8].into_iter().zip(&mut results) {
                    results.push(chain.call(kind, &Witness::passing(), input).unwrap());
                }
            }
        });
        let [seven, eight] = results;
        assert_eq!(seven, [seven[0]; 4]);
        assert_eq!(eight, [eight[0]; 4]);
        assert_ne!(seven[0], eight[0]);
    }

    #[test]
    fn a_chain_notes_its_frames_from_the_stack_that_it_ran_on() {
        with_each_object(|chain| {
            for kind in KINDS {
                let witness = Witness::passing();
                assert_eq!(witness.frames(kind), None);
                chain.call(kind, &witness, 7).unwrap();
                let frames = witness.frames(kind).unwrap();
                assert_eq!(frames.len(), FUNCTIONS.len());
                let cfas: Vec<_> = frames.iter().filter_map(|frame| frame.cfa).collect();
                assert!(cfas.is_sorted_by(|inner, outer| inner < outer), "{cfas:x?}");
                // Only the innermost frame does not return, only the outermost
                // one has no CFA.
                for (index, frame) in frames.iter().enumerate() {
                    assert_eq!(frame.pc.is_none(), index == 0);
                    assert_eq!(frame.cfa.is_none(), index == FUNCTIONS.len() - 1);
                    assert_eq!(frame.function, format!("{}_{}", kind.prefix(), FUNCTIONS[index]));
                }
            }
        });
    }

    #[test]
    fn another_number_of_frames_is_not_the_chain() {
        let witness = Witness::passing();
        with_each_object(|chain| {
            chain.call(Kind::FramePointers, &witness, 7).unwrap();
        });
        // Two chains have noted into one witness.
        assert_eq!(witness.frames(Kind::FramePointers), None);
    }

    #[test]
    fn the_file_goes_with_the_chain() {
        let mut directory = PathBuf::new();
        with_each_object(|chain| {
            directory.clone_from(&chain.file.directory);
            assert!(directory.join("chain.so").is_file());
        });
        assert!(!directory.exists());
    }
}
