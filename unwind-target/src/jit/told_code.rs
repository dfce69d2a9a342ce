//! What compilers in a process have told of their code, read when it is first asked for.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;

use crate::jit::jit_dump::JitDump;
use crate::jit::jit_map::JitMap;
use crate::jit::jit_maps::{JitMaps, Maker};
use crate::notices::Notices;
use crate::target::maps::{Backing, Mapping};
use crate::target::processes::Processes;
use crate::untrusted::Untrusted;

/// How many dumps of a process are read.
const MAX_DUMPS: usize = 8;

/// The functions that are told of.
pub(crate) struct ToldCode<'t> {
    /// The process, if it runs.
    process: Option<u32>,
    mappings: &'t [Mapping],
    maps: RefCell<JitMaps>,
    /// What dumps tell.
    dumped: OnceCell<JitMap>,
    /// Whether a function was asked for that nothing tells of.
    lacks_one: Cell<bool>,
    notices: Notices,
}

impl<'t> ToldCode<'t> {
    /// That of a process that runs, or of none.
    pub(crate) fn new(process: Option<i32>, mappings: &'t [Mapping], notices: Notices) -> Self {
        let process = process.and_then(|process| u32::try_from(process).ok());
        let maps = RefCell::new(JitMaps::new(notices.clone()));
        let (dumped, lacks_one) = (OnceCell::new(), Cell::new(false));
        Self { process, mappings, maps, dumped, lacks_one, notices }
    }

    /// The function at an address in a mapping, and how far into it that is.
    pub(crate) fn function(&self, mapping: &Mapping, addr: u64) -> Option<(Untrusted, u64)> {
        let maker = self.maker()?;
        let in_map = || Some(self.maps.borrow_mut().function(addr, maker)?.0);
        let found = self.dumped(maker).function(addr).or_else(in_map);
        if found.is_none() && mapping.is_memory() {
            self.lacks_one.set(true);
        }
        found.map(|(name, past)| ((*name).clone(), past))
    }

    /// What to tell a user if a function was asked for, and nothing tells of any.
    pub(crate) fn missing(&self) -> Option<String> {
        let maker = self.maker().filter(|_| self.lacks_one.get())?;
        let is_dumped = self.dumped(maker).len() > 0;
        self.maps.borrow_mut().missing(maker).filter(|_| !is_dumped)
    }

    fn maker(&self) -> Option<Maker<'static>> {
        let processes = Processes::Running;
        Some(Maker { process: self.process?, parents: &[], processes })
    }

    fn dumped(&self, maker: Maker<'_>) -> &JitMap {
        self.dumped.get_or_init(|| {
            let mut functions = JitMap::default();
            let files = self.mappings.iter().filter_map(|mapping| match &mapping.backing {
                Backing::File(file) if mapping.executable => Some(&file.path),
                _ => None,
            });
            // Each may be mapped in many places.
            let files: BTreeSet<_> = files.collect();
            let dumps = files.into_iter().filter_map(|path| {
                let name = path.as_os_str().as_bytes();
                JitDump::open(name, maker.process, maker.processes, &self.notices)
            });
            for mut dump in dumps.take(MAX_DUMPS) {
                dump.read_to(u64::MAX, |code| {
                    functions.insert(code.start, code.end, code.name.as_bytes());
                });
            }
            functions
        })
    }
}
