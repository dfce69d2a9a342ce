//! The files whose code a target executes: what is loaded where.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use unwind_core::Memory;

use crate::elf::ElfFile;
use crate::files::debug_files::DebugFiles;
use crate::files::mapped_file::ProcessFiles;
use crate::jit::registered_objects::code_of;
use crate::loaded::loaded_file::{LoadedFile, LoadedImage};
use crate::loaded::module_error::ModuleError;
use crate::loaded::remapped_text::{Candidate, candidates, same_pieces};
use crate::rows::program_start::EntryPoints;
use crate::target::maps::{Backing, MappedFile, Mapping};
use crate::target::memory::containing;

/// One loaded file.
#[derive(Debug)]
pub struct Module {
    /// How it is called: the path of a file, or `[vdso]`.
    pub path: PathBuf,
    file: Rc<ModuleFile>,
    /// Where a piece of its code starts, and from which offset of the file on that is.
    start: u64,
    offset: u64,
    image: OnceCell<Result<LoadedImage, ModuleError>>,
}

impl Module {
    /// Its file, opened at the first call.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if there is none.
    pub fn image(&self) -> Result<&LoadedImage, &ModuleError> {
        let image = self.image.get_or_init(|| {
            let file = self.file.get()?;
            let bias = file.elf.bias(self.start, self.offset);
            let bias = bias.ok_or(ModuleError::NoCodeAt(self.offset))?;
            Ok(LoadedImage { file, bias })
        });
        image.as_ref()
    }

    /// Its file, if that was asked for.
    pub(crate) fn image_so_far(&self) -> Option<&LoadedImage> {
        self.image.get()?.as_ref().ok()
    }
}

/// A file that is mapped, however often.
#[derive(Debug)]
pub(crate) struct ModuleFile {
    opened: OnceCell<Result<Rc<LoadedFile>, ModuleError>>,
    /// How it is opened when it is needed.
    later: Option<(Rc<ProcessFiles>, Range<u64>, MappedFile)>,
}

impl ModuleFile {
    /// The file, opened at the first call.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if it cannot be.
    pub(crate) fn get(&self) -> Result<Rc<LoadedFile>, ModuleError> {
        let open = || match &self.later {
            Some((files, range, mapped)) => Ok(Rc::new(files.open(range, mapped)?.into())),
            None => Err(ModuleError::Deleted),
        };
        self.opened.get_or_init(open).clone()
    }
}

/// How what backs a mapping becomes a file that can be read.
#[derive(Debug)]
pub enum Opening {
    /// It is open, or cannot be.
    Now(Result<ElfFile, ModuleError>),
    /// A file of a process, when it is needed.
    Later(Rc<ProcessFiles>),
}

impl EntryPoints for Modules {
    fn past_entry(&self, addr: u64) -> Option<u64> {
        let image = self.find(addr)?.image().ok()?;
        image.file.elf.past_entry(addr.wrapping_sub(image.bias))
    }
}

/// All loaded files of a target.
#[derive(Debug, Default)]
pub struct Modules {
    modules: Vec<Module>,
    /// Ranges of code and the index of the module that each belongs to, sorted.
    text: Vec<(Range<u64>, usize)>,
    /// The files by what backs their mappings.
    files: HashMap<Backing, Rc<ModuleFile>>,
    remapped: Vec<RemappedText>,
}

/// Code of a file that the program has moved to memory without a file.
#[derive(Clone, Debug)]
pub struct RemappedText {
    pub range: Range<u64>,
    /// Where in the file it starts.
    pub offset: u64,
    pub file: MappedFile,
}

impl Modules {
    /// Finds what backs each executable mapping, by `open`.
    pub fn load(mappings: &[Mapping], mut open: impl FnMut(&Mapping) -> Option<Opening>) -> Self {
        let mut modules = Self::default();
        // Programs may map their files in many thousand pieces.
        let mut known = HashMap::new();
        let code = mappings.iter().filter(|mapping| mapping.executable && !mapping.is_memory());
        for mapping in code {
            let path = match &mapping.backing {
                Backing::File(file) => file.path.clone(),
                Backing::Vdso => PathBuf::from("[vdso]"),
                Backing::Anonymous | Backing::Named(_) => continue,
            };
            // A file is opened once, however many mappings it has.
            let file = match modules.files.get(&mapping.backing) {
                Some(file) => Rc::clone(file),
                None => {
                    let Some(opening) = open(mapping) else { continue };
                    let file = Rc::new(ModuleFile::new(opening, mapping));
                    modules.files.insert(mapping.backing.clone(), Rc::clone(&file));
                    file
                }
            };
            let (start, offset) = (mapping.range.start, mapping.offset);
            // Pieces with one distance from their places in the file are of one module.
            let place = (&mapping.backing, start.wrapping_sub(offset));
            let index = *known.entry(place).or_insert_with(|| {
                modules.modules.push(Module { path, file, start, offset, image: OnceCell::new() });
                modules.modules.len().saturating_sub(1)
            });
            modules.text.push((mapping.range.clone(), index));
        }
        modules.text.sort_unstable_by_key(|(range, _)| range.start);
        modules
    }

    /// Takes memory without a file for the code of a file that it was moved from, where the bytes
    /// in `memory` are those of the file. `open` opens the file of a mapping.
    pub(crate) fn add_remapped(
        &mut self,
        mappings: &[Mapping],
        memory: &mut impl Memory,
        mut open: impl FnMut(&Mapping) -> Option<Opening>,
    ) {
        for candidate in candidates(mappings) {
            for neighbour in &candidate.neighbours {
                let known = self.files.get(&neighbour.backing).cloned();
                let opened = || Some(Rc::new(ModuleFile::new(open(neighbour)?, neighbour)));
                let Some(file) = known.or_else(opened) else { continue };
                self.files.entry(neighbour.backing.clone()).or_insert_with(|| Rc::clone(&file));
                let (Ok(loaded), Some(at)) = (file.get(), Candidate::place(neighbour)) else {
                    continue;
                };
                let Backing::File(mapped) = &neighbour.backing else { continue };
                let pieces = same_pieces(&loaded.elf, at, &candidate.range, memory);
                let is_found = !pieces.is_empty();
                for piece in pieces {
                    let (start, offset) = (piece.range.start, piece.offset);
                    let is_same = |module: &Module| {
                        Rc::ptr_eq(&module.file, &file)
                            && module.start.wrapping_sub(module.offset)
                                == start.wrapping_sub(offset)
                    };
                    let index = self.modules.iter().position(is_same).unwrap_or_else(|| {
                        let (path, image) = (mapped.path.clone(), OnceCell::new());
                        let file = Rc::clone(&file);
                        self.modules.push(Module { path, file, start, offset, image });
                        self.modules.len().saturating_sub(1)
                    });
                    self.text.push((piece.range.clone(), index));
                    let file = mapped.clone();
                    self.remapped.push(RemappedText { range: piece.range, offset, file });
                }
                if is_found {
                    break;
                }
            }
        }
        self.text.sort_unstable_by_key(|(range, _)| range.start);
    }

    /// Adds the objects that compilers have registered, whose sections are at their addresses already. What
    /// is not in code without a file is not theirs.
    pub(crate) fn add_registered(&mut self, mappings: &[Mapping], objects: Vec<ElfFile>) {
        let memory = mappings.iter().filter(|mapping| mapping.executable && mapping.is_memory());
        let mut memory: Vec<_> = memory.map(|mapping| mapping.range.clone()).collect();
        memory.sort_unstable_by_key(|range| range.start);
        // Their code by where it starts: where it ends, and whose it is.
        let mut registered: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for elf in objects {
            let (index, mut first) = (self.modules.len(), None);
            for code in code_of(&elf) {
                let (start, end) = (code.start, code.end);
                let before = registered.range(..end).next_back();
                let is_new = before.is_none_or(|(_, &(before, _))| before <= start);
                if containing(&memory, start, |range| range).is_some_and(|it| end <= it.end)
                    && is_new
                    && !self.has_code_in(code)
                {
                    registered.insert(start, (end, index));
                    first = first.or(Some(start));
                }
            }
            let Some(start) = first else { continue };
            let loaded = Rc::new(LoadedFile::from(elf));
            let image = OnceCell::from(Ok(LoadedImage { file: Rc::clone(&loaded), bias: 0 }));
            let file = Rc::new(ModuleFile { opened: OnceCell::from(Ok(loaded)), later: None });
            self.modules.push(Module { path: "[jit]".into(), file, start, offset: 0, image });
        }
        self.text.extend(registered.into_iter().map(|(start, (end, index))| (start..end, index)));
        self.text.sort_unstable_by_key(|(range, _)| range.start);
    }

    /// Whether a file has code in a range.
    #[must_use]
    pub fn has_code_in(&self, range: Range<u64>) -> bool {
        let after = self.text.partition_point(|(text, _)| text.start < range.end);
        let last = after.checked_sub(1).and_then(|at| self.text.get(at));
        last.is_some_and(|(text, _)| text.end > range.start)
    }

    /// The code that was moved to memory without a file.
    pub(crate) fn remapped(&self) -> &[RemappedText] {
        &self.remapped
    }

    /// The module whose code holds an address of the target.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<&Module> {
        self.modules.get(self.index_of(addr)?)
    }

    /// The piece of code that holds an address: its number, and its addresses.
    #[must_use]
    pub fn piece(&self, addr: u64) -> Option<(usize, &Range<u64>)> {
        let after = self.text.partition_point(|(range, _)| range.start <= addr);
        let number = after.checked_sub(1)?;
        let (range, _) = self.text.get(number)?;
        range.contains(&addr).then_some((number, range))
    }

    fn index_of(&self, addr: u64) -> Option<usize> {
        let (number, _) = self.piece(addr)?;
        self.text.get(number).map(|&(_, index)| index)
    }

    /// Looks up the functions of these addresses, which are asked for next; what was stripped
    /// off their files is among `debug_files`.
    pub(crate) fn expect_functions(
        &self,
        addrs: impl IntoIterator<Item = u64>,
        debug_files: &Rc<DebugFiles>,
    ) {
        let index = |addr| Some((self.index_of(addr)?, addr));
        let mut addrs: Vec<_> = addrs.into_iter().filter_map(index).collect();
        addrs.sort_unstable();
        addrs.dedup();
        for of_module in addrs.chunk_by(|(one, _), (other, _)| one == other) {
            let module = of_module.first().and_then(|(index, _)| self.modules.get(*index));
            // Without a file there are no names, which is told when they are asked for.
            if let Some(module) = module
                && let Ok(image) = module.image()
            {
                image.file.expect_debug_file(debug_files, &module.path);
                image.expect_functions(of_module.iter().map(|&(_, addr)| addr));
            }
        }
    }

    /// The file that backs the mappings of a kind, if one of them is executable.
    pub(crate) fn file_of(&self, backing: &Backing) -> Option<&Rc<ModuleFile>> {
        self.files.get(backing)
    }

    /// The loaded files.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter()
    }
}

impl ModuleFile {
    fn new(opening: Opening, mapping: &Mapping) -> Self {
        let opened = OnceCell::new();
        let later = match (opening, &mapping.backing) {
            (Opening::Later(files), Backing::File(file)) => {
                Some((files, mapping.range.clone(), file.clone()))
            }
            (Opening::Now(elf), _) => {
                // There is nothing in it yet.
                _ = opened.set(elf.map(|elf| Rc::new(elf.into())));
                None
            }
            (Opening::Later(_), _) => None,
        };
        Self { opened, later }
    }
}
