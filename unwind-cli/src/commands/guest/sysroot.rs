//! Files of the guest that this machine has, by their build ids.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, PROC_SUPER_MAGIC, statfs};
use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, WordSize};
use unwind_target::Untrusted;
use unwind_target::demangle::{Parameters, demangle_with};
use unwind_target::elf::ElfFile;
use unwind_target::rows::call_frame_rows::CallFrameRows;
use unwind_target::rows::indexed_frames::row_in_frame;
use unwind_target::symbols::Symbols;
use unwind_target::untrusted::{escaped, plain};

/// How many entries of folders are looked at, and how deep they may be.
const ENTRIES: usize = 1 << 18;
const DEPTH: usize = 32;

/// The longest demangled name, in bytes: some short names unfold to gigabytes.
const NAME_LIMIT: usize = 64 << 10;

/// How many names of one function are looked at.
const ALIASES: usize = 8;

/// The ELF files below a folder.
#[derive(Debug, Default)]
pub(crate) struct Sysroot {
    root: PathBuf,
    /// Of a program there may be two: itself, and what was stripped off it.
    paths: HashMap<Vec<u8>, Vec<PathBuf>>,
    /// Whether there were more entries than are looked at.
    is_cut: bool,
    opened: HashMap<Vec<u8>, Vec<OpenedFile>>,
}

/// A file, with what it says of its code.
#[derive(Debug)]
struct OpenedFile {
    file: ElfFile,
    symbols: Option<Symbols>,
    call_frames: CallFrameRows,
}

impl Sysroot {
    /// Looks for all files that have a build id.
    ///
    /// # Errors
    ///
    /// What reading the folder itself fails with.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut paths: HashMap<_, Vec<_>> = HashMap::new();
        let (mut left, mut is_cut) = (ENTRIES, false);
        let mut folders = vec![(fs::read_dir(root)?, 0_usize)];
        while let Some((folder, depth)) = folders.pop() {
            for entry in folder.flatten() {
                let Some(less) = left.checked_sub(1) else {
                    is_cut = true;
                    break;
                };
                left = less;
                // Links are not followed: what they lead to is there, or is none of the guest's.
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() && depth < DEPTH && !is_of_kernel(&entry.path()) {
                    folders.extend(
                        fs::read_dir(entry.path())
                            .ok()
                            .map(|folder| (folder, depth.saturating_add(1))),
                    );
                } else if kind.is_file()
                    && let Some(id) = build_id_of(&entry.path())
                {
                    paths.entry(id).or_default().push(entry.path());
                }
            }
        }
        Ok(Self { root: root.to_owned(), paths, is_cut, opened: HashMap::new() })
    }

    /// What is wrong with the folder.
    pub(crate) fn warning(&self) -> Option<String> {
        let root = escaped(&self.root);
        self.is_cut.then(|| {
            format!(
                "below {root} are more than {ENTRIES} files and folders, and the others were not \
                 looked at; --sysroot with a folder of the guest's programs alone needs fewer"
            )
        })
    }

    /// What the program with this build id is called there.
    pub(crate) fn name(&self, build_id: &[u8]) -> Option<Untrusted> {
        let path = self.paths.get(build_id)?.iter().min_by_key(|path| path.as_os_str().len())?;
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        Some(Untrusted::from([b"/", below.as_os_str().as_bytes()].concat()))
    }

    /// The function at a link-time address of the program with this build id, and where that is.
    pub(crate) fn function(
        &mut self,
        build_id: &[u8],
        addr: u64,
    ) -> Option<(Untrusted, Range<u64>)> {
        self.files(build_id)?.iter().find_map(|OpenedFile { file, symbols, .. }| {
            let (start, aliases) = symbols.as_ref()?.aliases(file, addr, ALIASES)?;
            let alias = aliases.iter().find(|alias| !alias.name.is_empty())?;
            let demangled = |name| demangle_with(name, NAME_LIMIT, Parameters::Shown);
            let name = plain(&alias.name).and_then(demangled);
            let name = name.map_or_else(|| Untrusted::from(&alias.name), Untrusted::from);
            Some((name, start..alias.end))
        })
    }

    /// The row of a frame in the program with this build id, which was loaded `bias` above its link-time addresses.
    pub(crate) fn row<A: Arch, M: Memory>(
        &mut self,
        build_id: &[u8],
        bias: u64,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Option<Row> {
        let addr = frame.lookup_addr().get().wrapping_sub(bias);
        self.files(build_id)?.iter().find_map(|OpenedFile { file, call_frames, .. }| {
            call_frames.word().filter(|word| *word == A::WORD)?;
            let rules = || call_frames.frame_rules(file, addr, bias);
            row_in_frame(call_frames.row(file, addr), frame, mem, rules)
        })
    }

    /// The rules of other registers at a link-time address of that program.
    pub(crate) fn register_rules(
        &mut self,
        build_id: &[u8],
        addr: u64,
        word: WordSize,
    ) -> Option<RegisterRules> {
        self.files(build_id)?.iter().find_map(|OpenedFile { file, call_frames, .. }| {
            call_frames.word().filter(|own| *own == word)?;
            call_frames.register_rules(file, addr)
        })
    }

    fn files(&mut self, build_id: &[u8]) -> Option<&[OpenedFile]> {
        let paths = self.paths.get(build_id)?;
        let open = || paths.iter().filter_map(|path| open(path)).collect();
        Some(self.opened.entry(build_id.to_vec()).or_insert_with(open))
    }
}

/// Whether a folder has what the kernel tells of processes and devices in place of files.
fn is_of_kernel(path: &Path) -> bool {
    const SYSFS_MAGIC: FsWord = 0x6265_6572;
    statfs(path).is_ok_and(|found| matches!(found.f_type, PROC_SUPER_MAGIC | SYSFS_MAGIC))
}

fn build_id_of(path: &Path) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).ok()?;
    if magic != *b"\x7fELF" {
        return None;
    }
    ElfFile::from_file(file).ok()?.build_id()
}

fn open(path: &Path) -> Option<OpenedFile> {
    let file = ElfFile::from_file(File::open(path).ok()?).ok()?;
    let symbols = Symbols::read(&file).ok();
    let call_frames = CallFrameRows::new(&file);
    Some(OpenedFile { file, symbols, call_frames })
}
