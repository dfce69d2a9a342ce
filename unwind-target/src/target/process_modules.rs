//! The loaded files of a process.

use std::rc::Rc;

use unwind_core::Memory;

use crate::files::mapped_file::{ProcessFiles, copy_vdso};
use crate::jit::registered_objects::JitLists;
use crate::loaded::module::{Modules, Opening, RemappedText};
use crate::loaded::remapped_text::candidates;
use crate::target::maps::{Backing, Mapping};
use crate::target::memory::ProcessMemory;

/// The files of a process, opened when they are needed.
pub(crate) fn load_of_process(
    mappings: &[Mapping],
    files: &Rc<ProcessFiles>,
    memory: &mut impl Memory,
) -> Modules {
    let open = |mapping: &Mapping| match &mapping.backing {
        // It may be gone with its process.
        Backing::File(file) if file.deleted => Some(Opening::Now(files.open(&mapping.range, file))),
        Backing::File(_) => Some(Opening::Later(Rc::clone(files))),
        Backing::Vdso | Backing::Anonymous | Backing::Named(_) => None,
    };
    let mut modules = Modules::load(mappings, |mapping| match &mapping.backing {
        Backing::Vdso => Some(Opening::Now(copy_vdso(&mapping.range, memory))),
        _ => open(mapping),
    });
    modules.add_remapped(mappings, memory, open);
    modules
}

/// Adds the objects that compilers have registered, of a process that stands still or of a core file.
pub(crate) fn add_registered(
    modules: &mut Modules,
    mappings: &[Mapping],
    memory: &mut impl Memory,
) {
    let open = |mapping: &Mapping| modules.file_of(&mapping.backing)?.get().ok();
    let objects = JitLists::find(mappings, open).read(memory);
    modules.add_registered(mappings, objects);
}

/// The code of files that a process has moved to memory without a file.
#[must_use]
pub fn remapped_text(process: i32, mappings: &[Mapping]) -> Vec<RemappedText> {
    if candidates(mappings).is_empty() {
        return Vec::new();
    }
    let Ok(mut memory) = ProcessMemory::open(process) else { return Vec::new() };
    let files = Rc::new(ProcessFiles::of(process));
    let mut modules = Modules::default();
    modules.add_remapped(mappings, &mut memory, |_| Some(Opening::Later(Rc::clone(&files))));
    modules.remapped().to_vec()
}
