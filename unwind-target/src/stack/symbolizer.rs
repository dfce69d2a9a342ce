//! Names of addresses of a process.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::files::mapped_file::ProcessFiles;
use crate::input_error::InputError;
use crate::jit::told_code::ToldCode;
use crate::loaded::module::Modules;
use crate::stack::source_lines;
use crate::stack::stacks::Naming;
use crate::stack::symbol::{NameRoom, Symbol};
use crate::target::error::TargetError;
use crate::target::maps::{self, Mapping};
use crate::target::memory::{PageCache, ProcessMemory};
use crate::target::{ROOM_FOR_NAMES, load_of_process};
use crate::untrusted::{Untrusted, escaped};

/// What addresses of a process are called, by what it has mapped when this is made. Files are opened when
/// they are first asked for.
///
/// ```
/// use unwind_target::Symbolizer;
///
/// fn asked() {}
///
/// let symbolizer = Symbolizer::of_own_process()?;
/// let address = u64::try_from((asked as *const ()).addr())?;
/// let symbol = &symbolizer.find(&[address]).symbols[0];
/// assert!(symbol.to_string().contains("asked"), "{symbol}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Symbolizer {
    process: i32,
    mappings: Vec<Mapping>,
    modules: Modules,
    naming: Naming,
}

/// What a [`Symbolizer`] has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Symbols {
    /// For each address, in the same order.
    pub symbols: Vec<Symbol>,
    /// What is not as it should be, a line each, which a terminal may show.
    pub warnings: Vec<String>,
}

impl Symbolizer {
    /// Of the calling process.
    ///
    /// # Errors
    ///
    /// As [`of_process`](Self::of_process).
    pub fn of_own_process() -> Result<Self, TargetError> {
        Self::of_process(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Of the process with this id, which is not stopped.
    ///
    /// # Errors
    ///
    /// [`TargetError::Input`] if `/proc` does not show it, or its memory may not be read.
    pub fn of_process(id: i32) -> Result<Self, TargetError> {
        let path = format!("/proc/{id}/maps");
        let text =
            std::fs::read(&path).map_err(|error| InputError::Read { path: path.into(), error })?;
        let mappings = maps::parse(&text);
        let memory = ProcessMemory::open(id)
            .map_err(|error| InputError::Read { path: format!("/proc/{id}/mem").into(), error })?;
        let files = Rc::new(ProcessFiles::of(id));
        let modules = load_of_process(&mappings, &files, &mut PageCache::new(memory));
        Ok(Self { process: id, mappings, modules, naming: Naming::new() })
    }

    /// How addresses are named.
    #[must_use]
    pub fn naming(self, naming: Naming) -> Self {
        Self { naming, ..self }
    }

    /// What addresses of instructions are called. One that is nowhere has the text `??`.
    #[must_use]
    pub fn find(&self, addrs: &[u64]) -> Symbols {
        self.find_before(addrs, 0)
    }

    /// The same of return addresses, which are those after calls: the call may be the last instruction of its
    /// function or its line. Offsets are of the return addresses themselves.
    #[must_use]
    pub fn find_return_addresses(&self, addrs: &[u64]) -> Symbols {
        self.find_before(addrs, 1)
    }

    /// What these addresses are called by the code `before` bytes before each.
    fn find_before(&self, addrs: &[u64], before: u64) -> Symbols {
        let lookups: Vec<_> = addrs.iter().map(|addr| addr.wrapping_sub(before)).collect();
        self.modules.expect_functions(lookups.iter().copied(), &self.naming.debug_files);
        let told = ToldCode::new(Some(self.process), &self.mappings, self.naming.notices.clone());
        let mut room = NameRoom::new(ROOM_FOR_NAMES);
        let mut troubles = BTreeMap::<Untrusted, String>::new();
        let mut symbols: Vec<_> = addrs.iter().map(|_| Symbol::default()).collect();
        for ((&addr, &lookup), symbol) in addrs.iter().zip(&lookups).zip(&mut symbols) {
            match self.modules.find(lookup) {
                Some(module) => {
                    if let Err(trouble) = symbol.name(module, addr, lookup) {
                        troubles.insert(module.path.as_path().into(), trouble);
                    }
                }
                None => symbol.name_without_file(&self.mappings, &told, lookup, before),
            }
            symbol.demangle(self.naming.parameters);
            room.fit([&mut symbol.object, &mut symbol.function, &mut symbol.mangled]);
        }
        let mut warnings = Vec::new();
        if let Some(reader) = &self.naming.lines {
            let mut placed: Vec<_> = lookups.iter().copied().zip(&mut symbols).collect();
            let parameters = self.naming.parameters;
            warnings = source_lines::add(&mut placed, &self.modules, reader, parameters, &mut room);
        }
        for module in self.modules.iter() {
            let image = module.image_so_far();
            if let Some(wrong) = image.and_then(|image| image.file.wrong_debug_file()) {
                warnings.push(format!("{}: {wrong}", escaped(&module.path)));
            }
        }
        warnings.extend(told.missing());
        warnings.extend(troubles.into_iter().map(|(path, trouble)| format!("{path}: {trouble}")));
        Symbols { symbols, warnings }
    }
}
