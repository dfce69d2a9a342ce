//! The maps of all processes, and whose code is in which: a process that came from another one
//! without an exec has the code of that, which the other one's map tells.

use std::collections::HashMap;
use std::iter;
use std::path::PathBuf;
use std::rc::Rc;

use crate::jit::compiler_file;
use crate::jit::jit_map::{JitMap, MAX_HELD};
use crate::notices::Notices;
use crate::target::processes::Processes;
use crate::untrusted::{Untrusted, escaped};

/// Of how many processes maps are kept, and how many bytes these have together.
const MAX_MAPS: usize = 64;
const MAX_BYTES: usize = 2 * MAX_HELD;

/// How many of the processes are known from which one came without an exec.
pub const MAX_PARENTS: usize = 7;

/// A process with code that it has made.
#[derive(Clone, Copy, Debug)]
pub struct Maker<'s> {
    pub process: u32,
    /// The processes that it came from without an exec, as records say, the last one first.
    pub parents: &'s [u32],
    /// What is known of all of them.
    pub processes: Processes,
}

/// The maps that were read.
#[derive(Debug, Default)]
pub struct JitMaps {
    maps: HashMap<u32, JitMap>,
    /// The same as [`Maker::parents`] of processes that run, where no record says it.
    living_parents: HashMap<u32, Rc<[u32]>>,
    /// Which are told of files that are not used.
    notices: Notices,
}

impl JitMaps {
    /// None yet. Of files that are not used `notices` are told.
    #[must_use]
    pub fn new(notices: Notices) -> Self {
        Self { notices, ..Self::default() }
    }

    /// Forgets all: maps grow as long as compilers run.
    pub fn clear(&mut self) {
        self.maps.clear();
        self.living_parents.clear();
    }

    /// The function at an address, how far into it that is, and the map that tells of it.
    pub fn function(
        &mut self,
        addr: u64,
        maker: Maker<'_>,
    ) -> Option<((Rc<Untrusted>, u64), PathBuf)> {
        let in_map = |maps: &mut Self, process| {
            let function = maps.map(process, maker.processes).function(addr)?;
            Some((function, JitMap::path(process)))
        };
        if let Some(found) = in_map(self, maker.process) {
            return Some(found);
        }
        let parents = self.parents(maker);
        parents.iter().find_map(|&parent| in_map(self, parent))
    }

    /// What to tell a user of a process whose code no map tells of; `None` if one does, or is not
    /// used, of which the user is told.
    pub fn missing(&mut self, maker: Maker<'_>) -> Option<String> {
        let process = maker.process;
        let parents = self.parents(maker);
        let mut all = iter::once(process).chain(parents.iter().copied());
        all.all(|process| self.map(process, maker.processes).is_missing).then(|| {
            let path = JitMap::path(process);
            format!(
                "functions of process {process} that are in no file have no names: there is neither {} \
                 nor a dump that it has mapped, and those of a container go with it; compilers write \
                 one if told so, as node by --perf-basic-prof, and Java by \
                 -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit",
                escaped(&path)
            )
        })
    }

    fn map(&mut self, process: u32, processes: Processes) -> &JitMap {
        if !self.maps.contains_key(&process) {
            let held = self.maps.values().map(|map| map.held).fold(0, usize::saturating_add);
            if self.maps.len() >= MAX_MAPS || held >= MAX_BYTES {
                self.clear();
            }
        }
        let read = || JitMap::of_process(process, processes, &self.notices);
        self.maps.entry(process).or_insert_with(read)
    }

    fn parents(&mut self, maker: Maker<'_>) -> Rc<[u32]> {
        if !maker.parents.is_empty() {
            return maker.parents.into();
        }
        let parent = |&process: &u32| compiler_file::forked_from(process, maker.processes);
        let find = || iter::successors(parent(&maker.process), parent).take(MAX_PARENTS).collect();
        Rc::clone(self.living_parents.entry(maker.process).or_insert_with(find))
    }
}
