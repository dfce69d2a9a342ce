//! The loaded files of a program, as an interpreter looks for itself among them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use crate::loaded::file_data::{FileData, data_of_files, loaded_files, path};
use crate::loaded::loaded_file::LoadedFile;
use crate::symbols::data::data_starting;
use crate::target::maps::Mapping;

/// The files whose code a program has mapped.
pub(super) struct Objects<'m> {
    pub(super) mappings: &'m [Mapping],
    pub(super) open: &'m mut dyn FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
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
    ) -> Option<FileData<N>> {
        let wanted = |path: &Path| wanted(file_name(path));
        data_of_files(self.mappings, &mut self.open, wanted, names).next()
    }

    /// The addresses of all data whose names start so, by the rest of the names, in the first file whose name is
    /// `wanted` and that has such.
    pub(super) fn all_data(
        &mut self,
        wanted: impl Fn(&[u8]) -> bool,
        start: &[u8],
    ) -> BTreeMap<Vec<u8>, u64> {
        let wanted = |path: &Path| wanted(file_name(path));
        let mut files = loaded_files(self.mappings, &mut self.open, wanted);
        let found = files.find_map(|(_, file, bias)| {
            let found = data_starting(&file.elf, start).ok().filter(|found| !found.is_empty())?;
            Some(found.into_iter().map(|(name, addr)| (name, addr.wrapping_add(bias))).collect())
        });
        found.unwrap_or_default()
    }
}

/// The last part of a path.
pub(super) fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or(OsStr::new("")).as_bytes()
}
