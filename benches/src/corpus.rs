//! Captured stacks with the tables of their programs.

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::{Object as _, ObjectSection as _};
use sframe::{Abi, Builder, CfiSection, Format};
use unwind_snapshot::{Image, Recording, Snapshot};

use crate::{eh_frame, perf_samples};

/// The stacks of one program.
///
/// All are of one process with the same code mapped, that from which most were
/// captured.
#[derive(Debug)]
pub struct Corpus {
    /// The name of the file.
    pub name: String,
    /// In order of time.
    pub snapshots: Vec<Snapshot<'static>>,
    /// The code, ascending.
    pub modules: Vec<Module>,
}

/// A range of code with its tables.
#[derive(Clone, Debug)]
pub struct Module {
    /// Its addresses.
    pub text: Range<u64>,
    /// How far it is loaded above its link-time addresses.
    pub bias: u64,
    /// Its tables, where it has any.
    pub tables: &'static Tables,
}

/// The tables of one image. All say the same. Addresses are as linked.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The path of the image.
    pub path: String,
    /// Where `.eh_frame` is.
    pub eh_frame_addr: u64,
    /// `.eh_frame`.
    pub eh_frame: Vec<u8>,
    /// Where `.eh_frame_hdr` is.
    pub header_addr: u64,
    /// `.eh_frame_hdr`.
    pub header: Vec<u8>,
    /// Where `.sframe` is, of either version.
    pub sframe_addr: u64,
    /// `.sframe` of version 2.
    pub sframe_v2: Vec<u8>,
    /// `.sframe` of version 3.
    pub sframe: Vec<u8>,
}

impl Tables {
    /// The tables of an image with this call frame information.
    #[must_use]
    pub fn new(path: &str, eh_frame_addr: u64, eh_frame: &[u8]) -> Self {
        let after = |addr: u64, bytes: &[u8]| {
            (addr + u64::try_from(bytes.len()).unwrap()).next_multiple_of(16)
        };
        let header_addr = after(eh_frame_addr, eh_frame);
        let entries = eh_frame::entries(eh_frame, eh_frame_addr);
        let header = eh_frame::header(&entries, eh_frame_addr, header_addr);
        let sframe_addr = after(header_addr, &header);
        let sframe = |format| build_sframe(format, eh_frame, eh_frame_addr, sframe_addr);
        Self {
            path: path.into(),
            eh_frame_addr,
            eh_frame: eh_frame.into(),
            header_addr,
            header,
            sframe_addr,
            sframe_v2: sframe(Format::V2),
            sframe: sframe(Format::V3),
        }
    }

    /// The tables of an ELF file; `None` if it has none.
    ///
    /// # Panics
    ///
    /// If it cannot be read, or has another build id.
    #[must_use]
    pub fn of_file(path: &Path, build_id: &[u8]) -> Option<Self> {
        let (addr, eh_frame) = read_eh_frame(path, build_id)?;
        Some(Self::new(&path.display().to_string(), addr, &eh_frame))
    }
}

/// The `.eh_frame` of an ELF file and where it is linked.
///
/// # Panics
///
/// If it cannot be read, or has another build id.
#[must_use]
pub fn read_eh_frame(path: &Path, build_id: &[u8]) -> Option<(u64, Vec<u8>)> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = object::File::parse(&*bytes).unwrap();
    let found = file.build_id().unwrap().unwrap_or_default();
    assert_eq!(found, build_id, "{} was replaced: capture again", path.display());
    eh_frame_of(&file)
}

/// The `.eh_frame` of an ELF file and where it is linked.
///
/// # Panics
///
/// If it lies outside the file.
#[must_use]
pub fn eh_frame_of(file: &object::File<'_>) -> Option<(u64, Vec<u8>)> {
    let section = file.section_by_name(".eh_frame")?;
    Some((section.address(), section.data().unwrap().to_vec()))
}

/// Makes `.sframe`, linked at `addr`, of `.eh_frame`.
#[must_use]
pub fn build_sframe(format: Format, eh_frame: &[u8], eh_frame_addr: u64, addr: u64) -> Vec<u8> {
    let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
    builder.add_cfi(CfiSection::eh_frame(eh_frame, eh_frame_addr), |_| {}).unwrap();
    builder.finish(addr, |_| {}).unwrap()
}

/// Reads a file of snapshots, or a `perf.data` with registers and stacks, which is kept
/// for the rest of the run.
///
/// # Panics
///
/// If it cannot be read.
#[must_use]
pub fn read(path: &Path) -> Recording<'static> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if bytes.starts_with(b"PERFILE2") {
        return perf_samples::recording(Cursor::new(bytes));
    }
    Recording::parse(Vec::leak(bytes)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The snapshots of one process with the same code mapped, that with the most,
/// and the index of its address space.
#[must_use]
pub fn most_frequent(recording: &Recording<'static>) -> (u32, Vec<Snapshot<'static>>) {
    let mut counts: HashMap<(u32, u32), usize> = HashMap::new();
    for snapshot in &recording.snapshots {
        *counts.entry((snapshot.space, snapshot.process)).or_default() += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|&(key, count)| (count, key)).unwrap();
    let of_it = recording.snapshots.iter().filter(|s| (s.space, s.process) == most);
    (most.0, of_it.copied().collect())
}

impl Corpus {
    /// Reads a file as [`read`] does, and the tables that go with it: those in the
    /// file, else those of the images.
    ///
    /// # Panics
    ///
    /// If the file or an image cannot be read.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        let recording = read(path);
        let (space, snapshots) = most_frequent(&recording);
        let is_cut = !recording.cfi.is_empty();
        let mut tables: HashMap<u32, &'static Tables> = HashMap::new();
        let mut modules = Vec::new();
        for mapping in &recording.spaces[usize::try_from(space).unwrap()].mappings {
            let image = &recording.images[usize::try_from(mapping.image).unwrap()];
            let tables = tables.entry(mapping.image).or_insert_with(|| {
                let cfi = recording.cfi.iter().find(|cfi| cfi.image == mapping.image);
                let name = String::from_utf8_lossy(image.path);
                let tables = match cfi {
                    Some(cfi) => Tables::new(&name, cfi.addr, cfi.eh_frame),
                    None if is_cut => Tables::default(),
                    None => Tables::of_file(&path_of(image), image.build_id).unwrap_or_default(),
                };
                Box::leak(Box::new(tables))
            });
            modules.push(Module { text: mapping.range.clone(), bias: mapping.bias, tables });
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, snapshots, modules }
    }

    /// The modules that have tables.
    pub fn covered(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().filter(|module| !module.tables.eh_frame.is_empty())
    }

    /// The committed corpora and, where it was captured, the large ones: the
    /// folder that `UNWIND_CORPUS` names, as seen from the workspace.
    #[must_use]
    pub fn paths() -> Vec<PathBuf> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = match std::env::var_os("UNWIND_CORPUS") {
            // Cargo runs a bench in its package.
            Some(folder) => package.join("..").join(folder),
            None => package.join("corpus"),
        };
        let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        let is_corpus = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "snap" || extension == "data")
        };
        paths.retain(is_corpus);
        paths.sort();
        assert!(!paths.is_empty(), "no corpus in {}", folder.display());
        paths
    }
}

/// Where an image is.
#[must_use]
pub fn path_of(image: &Image<'_>) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(image.path).into_owned())
}
