//! Where loaded files have data with given names.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use crate::loaded::loaded_file::LoadedFile;
use crate::symbols::data::data_named;
use crate::target::maps::{Backing, Mapping};

/// How often a file is looked at that is mapped in several places, as in namespaces of the dynamic linker.
const PLACES: u32 = 16;

/// Data of a loaded file.
pub(crate) struct FileData<const N: usize> {
    /// The addresses of the names that were asked for.
    pub(crate) addrs: [Option<u64>; N],
    /// The mapping of code that the file was found by.
    pub(crate) mapping: Mapping,
}

/// The data of these names in each file that is `wanted` by its path and has the first of them. `open` opens
/// the file of a mapping.
pub(crate) fn data_of_files<const N: usize>(
    mappings: &[Mapping],
    open: impl FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
    wanted: impl Fn(&Path) -> bool,
    names: &[&[u8]; N],
) -> impl Iterator<Item = FileData<N>> {
    loaded_files(mappings, open, wanted).filter_map(|(mapping, file, bias)| {
        let found = data_named(&file.elf, names).ok()?;
        found.first().copied().flatten()?;
        let addrs = found.map(|addr| Some(addr?.wrapping_add(bias)));
        Some(FileData { addrs, mapping: mapping.clone() })
    })
}

/// Each file that is `wanted` by its path, with a mapping of its code and how far it is from where it was
/// linked.
pub(crate) fn loaded_files(
    mappings: &[Mapping],
    mut open: impl FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
    wanted: impl Fn(&Path) -> bool,
) -> impl Iterator<Item = (&Mapping, Rc<LoadedFile>, u64)> {
    let (mut last, mut places) = (None, HashMap::<_, u32>::new());
    mappings.iter().filter_map(move |mapping| {
        let path = path(mapping).filter(|path| last != Some(*path))?;
        last = Some(path);
        if !wanted(path) {
            return None;
        }
        let places = places.entry(path).or_default();
        *places = places.saturating_add(1);
        if *places > PLACES {
            return None;
        }
        let file = open(mapping)?;
        let bias = file.elf.bias(mapping.range.start, mapping.offset)?;
        Some((mapping, file, bias))
    })
}

/// The path of a file whose code is mapped.
pub(crate) fn path(mapping: &Mapping) -> Option<&Path> {
    match &mapping.backing {
        Backing::File(file) if mapping.executable => Some(&file.path),
        _ => None,
    }
}
