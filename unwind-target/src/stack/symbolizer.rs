//! Names of addresses of a process.

use std::rc::Rc;

use crate::files::mapped_file::ProcessFiles;
use crate::loaded::module::Modules;
use crate::stack::namer::Namer;
use crate::stack::naming::Naming;
use crate::stack::symbol::Symbol;
use crate::target::ROOM_FOR_NAMES;
use crate::target::capture::mappings_and_memory;
use crate::target::error::TargetError;
use crate::target::maps::Mapping;
use crate::target::memory::PageCache;
use crate::target::process_modules::load_of_process;

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
        let (mappings, memory) = mappings_and_memory(id)?;
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
        let (process, mappings) = (Some(self.process), &self.mappings);
        let mut namer = Namer::new(process, mappings, &self.modules, &self.naming, ROOM_FOR_NAMES);
        let asked = addrs.iter().zip(&lookups);
        let mut symbols: Vec<_> =
            asked.map(|(&addr, &lookup)| namer.address(addr, lookup)).collect();
        let mut placed: Vec<_> = lookups.iter().copied().zip(&mut symbols).collect();
        let warnings = namer.finish(&mut placed);
        Symbols { symbols, warnings }
    }
}
