//! A file whose code a target executes, and what was read of it so far.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use sframe::{Format, WriteError};
use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, WordSize};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::elf::sframe_section::SframeSection;
use crate::files::debug_files::{DebugFiles, WrongDebugFile};
use crate::rows::build_progress::BuildProgress;
use crate::rows::call_frame_rows::CallFrameRows;
use crate::rows::call_frames::{BuiltTable, CallFrames};
use crate::rows::indexed_frames::{NoRowError, row_in_frame};
use crate::rows::stack_switches::{FileSwitches, SwitchNames};
use crate::symbols::few::functions_at;
use crate::symbols::{Function, Symbols};

/// Why no table is made of a file's call frame information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BuildError {
    /// It is damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A file and where it is loaded. It may be loaded in many places.
#[derive(Debug)]
pub struct LoadedImage {
    pub file: Rc<LoadedFile>,
    /// How far it is above its link-time addresses, wrapping.
    pub bias: u64,
}

/// A file, and what was read of it so far: once, wherever it is loaded.
#[derive(Debug)]
pub struct LoadedFile {
    pub elf: ElfFile,
    sframe: OnceCell<Result<Option<SframeSection>, ElfError>>,
    call_frames: CallFrameRows,
    built: OnceCell<Result<Option<BuiltTable>, BuildError>>,
    functions: Functions,
    switches: OnceCell<FileSwitches>,
    /// Where what was stripped off it is looked for, and how the target calls it.
    debug_search: OnceCell<(Rc<DebugFiles>, PathBuf)>,
    debug_file: OnceCell<Result<Option<Arc<ElfFile>>, WrongDebugFile>>,
}

impl From<ElfFile> for LoadedFile {
    fn from(elf: ElfFile) -> Self {
        let (sframe, built, functions) = (OnceCell::new(), OnceCell::new(), Functions::default());
        let call_frames = CallFrameRows::new(&elf);
        let (switches, debug_search, debug_file) =
            (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { elf, sframe, call_frames, built, functions, switches, debug_search, debug_file }
    }
}

impl LoadedFile {
    /// Says where what was stripped off this file is to be looked for, and what the target
    /// calls it. The first one to say so counts.
    pub(crate) fn expect_debug_file(&self, debug_files: &Rc<DebugFiles>, path: &Path) {
        self.debug_search.get_or_init(|| (Rc::clone(debug_files), path.into()));
    }

    /// Its functions that switch stacks, which are Go's or have one of these names. The first
    /// names that are asked for count.
    pub(crate) fn switches(&self, names: &SwitchNames) -> &FileSwitches {
        self.switches.get_or_init(|| FileSwitches::read(&self.elf, names))
    }

    /// The file with what was stripped off this one, looked for at the first call.
    ///
    /// # Errors
    ///
    /// [`WrongDebugFile`] if there is only one that is not of this file.
    pub(crate) fn debug_file(&self) -> Result<Option<&Arc<ElfFile>>, &WrongDebugFile> {
        let find = || match self.debug_search.get() {
            Some((debug_files, path)) => debug_files.find(&self.elf, Some(path)),
            None => DebugFiles::default().find(&self.elf, None),
        };
        let found = self.debug_file.get_or_init(|| Ok(find()?.map(Arc::new)));
        found.as_ref().map(Option::as_ref)
    }

    /// What has come of [`debug_file`](Self::debug_file), if it was asked for.
    pub(crate) fn wrong_debug_file(&self) -> Option<&WrongDebugFile> {
        self.debug_file.get()?.as_ref().err()
    }

    fn some_debug_file(&self) -> Option<Arc<ElfFile>> {
        self.debug_file().ok().flatten().cloned()
    }
}

impl LoadedImage {
    /// Its `.sframe`, read at the first call.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it is not inside the file.
    pub fn sframe(&self) -> Result<Option<&SframeSection>, ElfError> {
        match self.file.sframe.get_or_init(|| self.file.elf.sframe()) {
            Ok(section) => Ok(section.as_ref()),
            Err(error) => Err(*error),
        }
    }

    /// What has come of [`sframe`](Self::sframe), if it was asked for.
    pub(crate) fn sframe_so_far(&self) -> Option<Result<Option<&SframeSection>, ElfError>> {
        self.file.sframe.get().map(|section| match section {
            Ok(section) => Ok(section.as_ref()),
            Err(error) => Err(*error),
        })
    }

    /// The row for an address of the target, straight from the file's call frame
    /// information; `None` if that says nothing of it, or is of code with other words.
    ///
    /// # Errors
    ///
    /// [`NoRowError`] if what it says cannot be used.
    pub fn call_frame_row(&self, addr: u64, word: WordSize) -> Result<Option<Row>, NoRowError> {
        let rows = &self.file.call_frames;
        if rows.word() != Some(word) {
            return Ok(None);
        }
        rows.row(&self.file.elf, addr.wrapping_sub(self.bias))
    }

    /// The row of a frame of the target, by the same, with what only the frame and its memory
    /// tell.
    pub(crate) fn call_frame_row_in<A: Arch, M: Memory>(
        &self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Option<Row> {
        let addr = frame.lookup_addr().get();
        row_in_frame(self.call_frame_row(addr, A::WORD), frame, mem, || {
            let (file, bias) = (&self.file, self.bias);
            file.call_frames.frame_rules(&file.elf, addr.wrapping_sub(bias), bias)
        })
    }

    /// The rules of other registers for an address of the target by the call frame
    /// information, if that has them.
    pub(crate) fn call_frame_register_rules(
        &self,
        addr: u64,
        word: WordSize,
    ) -> Option<RegisterRules> {
        let rows = &self.file.call_frames;
        let is_same = rows.word() == Some(word);
        is_same.then(|| rows.register_rules(&self.file.elf, addr.wrapping_sub(self.bias)))?
    }

    /// The number of the first entry that is not in order in the table by which call frame information is
    /// searched, if that was found out.
    pub(crate) fn disorder(&self) -> Option<u32> {
        self.file.call_frames.disorder_so_far()
    }

    /// What of the call frame information that was looked for so far could not be read.
    pub(crate) fn unread_call_frames(&self) -> Option<ElfError> {
        self.file.call_frames.unread()
    }

    /// Whether the file has call frame information of code that is understood.
    pub(crate) fn has_call_frames(&self) -> bool {
        self.file.call_frames.is_there(&self.file.elf)
    }

    /// A table made of its call frame information at the first call; `None` if
    /// it has none. `path` is what to call it while that takes long.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the information is not inside the file, or memory is
    /// short.
    pub(crate) fn built(
        &self,
        path: &Path,
        progress: &dyn BuildProgress,
    ) -> Result<Option<&BuiltTable>, BuildError> {
        let elf = &self.file.elf;
        let built = self.file.built.get_or_init(|| {
            let Some(frames) = CallFrames::read(elf)? else { return Ok(None) };
            let done = |done| progress.done(path, elf.byte_len(), done, frames.byte_len());
            // Addresses are the file's own until the table is used.
            let built = frames.build(Format::V3, 0, done);
            progress.end();
            Ok(Some(built?))
        });
        match built {
            Ok(table) => Ok(table.as_ref()),
            Err(error) => Err(*error),
        }
    }

    /// What has come of [`built`](Self::built), if it was asked for.
    pub(crate) fn built_so_far(&self) -> Option<Result<Option<&BuiltTable>, BuildError>> {
        self.file.built.get().map(|built| match built {
            Ok(table) => Ok(table.as_ref()),
            Err(error) => Err(*error),
        })
    }

    /// The function that holds an address of the target.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if the symbols are damaged.
    pub fn function(&self, addr: u64) -> Result<Option<Function>, ElfError> {
        self.file.functions.find(&self.file, addr.wrapping_sub(self.bias))
    }

    /// Looks up the functions of these addresses of the target, which are asked for next.
    /// What is wrong with the symbols is told then.
    pub(crate) fn expect_functions(&self, addrs: impl IntoIterator<Item = u64>) {
        let linked = addrs.into_iter().map(|addr| addr.wrapping_sub(self.bias));
        self.file.functions.expect(&self.file, linked.collect());
    }
}

/// The functions of a file, as far as they were asked for.
#[derive(Debug, Default)]
struct Functions {
    /// By addresses in them.
    known: RefCell<HashMap<u64, Option<Function>>>,
    /// All of them, for whoever asks for more.
    all: OnceCell<Result<Symbols, ElfError>>,
}

impl Functions {
    fn find(&self, file: &LoadedFile, addr: u64) -> Result<Option<Function>, ElfError> {
        if let Some(known) = self.known.borrow().get(&addr) {
            return Ok(known.clone());
        }
        let read = || Symbols::read_with(&file.elf, || file.some_debug_file());
        match self.all.get_or_init(read) {
            Ok(symbols) => Ok(symbols.find(&file.elf, addr)),
            Err(error) => Err(*error),
        }
    }

    fn expect(&self, file: &LoadedFile, mut addrs: Vec<u64>) {
        let mut known = self.known.borrow_mut();
        addrs.sort_unstable();
        addrs.dedup();
        addrs.retain(|addr| !known.contains_key(addr));
        if self.all.get().is_none()
            && !addrs.is_empty()
            && let Ok(found) = functions_at(&file.elf, &addrs, || file.some_debug_file())
        {
            known.extend(addrs.into_iter().zip(found));
        }
    }
}
