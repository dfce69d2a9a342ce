//! The loaded files of a program, as an interpreter looks for itself among them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use crate::loaded::loaded_file::LoadedFile;
use crate::symbols::data::data_named;
use crate::target::maps::{Backing, Mapping};

/// The files whose code a program has mapped.
pub(super) struct Objects<'m> {
    pub(super) mappings: &'m [Mapping],
    pub(super) open: &'m mut dyn FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
}

/// Data of a loaded file.
pub(super) struct Data<const N: usize> {
    /// The addresses of the names that were asked for.
    pub(super) addrs: [Option<u64>; N],
    /// The mapping of code that the file was found by.
    pub(super) mapping: Mapping,
}

impl Objects<'_> {
    /// The names of all files with code.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.mappings.iter().filter_map(path)
    }

    /// The data of these names in the first file whose name is `wanted` and that has the first of them.
    pub(super) fn data<const N: usize>(
        &mut self,
        wanted: impl Fn(&[u8]) -> bool,
        names: &[&[u8]; N],
    ) -> Option<Data<N>> {
        let mut last = None;
        for mapping in self.mappings {
            let Some(path) = path(mapping).filter(|path| last != Some(*path)) else { continue };
            last = Some(path);
            if !wanted(file_name(path)) {
                continue;
            }
            let Some(file) = (self.open)(mapping) else { continue };
            let Some(bias) = file.elf.bias(mapping.range.start, mapping.offset) else { continue };
            let Ok(found) = data_named(&file.elf, names) else { continue };
            if found.first().copied().flatten().is_some() {
                let addrs = found.map(|addr| Some(addr?.wrapping_add(bias)));
                return Some(Data { addrs, mapping: mapping.clone() });
            }
        }
        None
    }
}

/// The last part of a path.
pub(super) fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or(OsStr::new("")).as_bytes()
}

fn path(mapping: &Mapping) -> Option<&Path> {
    match &mapping.backing {
        Backing::File(file) if mapping.executable => Some(&file.path),
        _ => None,
    }
}
