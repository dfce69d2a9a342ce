//! Functions of a file that call on another stack: those of Go's runtime, and those that the
//! user names.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use unwind_core::{End, TableError, TableFault, VirtAddr};
use unwind_x86::{StackSwitchError, SwitchingFunction, WayBack};

use crate::elf::ElfFile;
use crate::symbols::named::named;

/// Names of functions that switch stacks, as files have them, for any file.
#[derive(Clone, Debug, Default)]
pub struct SwitchNames(Vec<Vec<u8>>);

impl SwitchNames {
    /// None but those that are known.
    pub const NONE: &Self = &Self(Vec::new());

    /// These, too.
    #[must_use]
    pub fn new(names: &[OsString]) -> Self {
        Self(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }
}

/// What Go's runtime calls its own. From Go 1.17 on the name with the suffix is the code, and
/// the one without, if there is one, only calls it.
const GO: [(&[u8], Kind); 13] = [
    (b"runtime.systemstack.abi0", Kind::System),
    (b"runtime.systemstack", Kind::System),
    (b"runtime.asmcgocall.abi0", Kind::Call),
    (b"runtime.asmcgocall", Kind::Call),
    (b"runtime.mcall", Kind::Never),
    (b"runtime.morestack.abi0", Kind::More),
    (b"runtime.morestack", Kind::More),
    (b"runtime.nanotime1.abi0", Kind::Clock),
    (b"runtime.nanotime1", Kind::Clock),
    (b"runtime.walltime.abi0", Kind::Clock),
    (b"runtime.walltime", Kind::Clock),
    (b"time.now.abi0", Kind::Clock),
    (b"time.now", Kind::Clock),
];

/// How a function gets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By its instructions, which others are continued by, too.
    System,
    Call,
    Never,
    /// As `systemstack` would.
    More,
    /// By its frame pointer.
    Clock,
    /// Not Go's: by its instructions.
    User,
}

/// The functions of a file that switch stacks, by link-time addresses.
#[derive(Debug, Default)]
pub struct FileSwitches(Vec<SwitchingFunction>);

impl FileSwitches {
    /// Those of a file. Without symbols there are none.
    pub fn read(file: &ElfFile, names: &SwitchNames) -> Self {
        let is_go = is_go(file);
        if !is_go && names.0.is_empty() {
            return Self::default();
        }
        let own = if is_go { GO.as_slice() } else { &[] };
        let own_names = own.iter().map(|&(name, _)| name);
        let wanted: Vec<&[u8]> = own_names.chain(names.0.iter().map(Vec::as_slice)).collect();
        let mut found = named(file, &wanted).unwrap_or_default();
        found.sort_by_key(|found| found.name);
        let kind = |name: usize| own.get(name).map_or(Kind::User, |&(_, kind)| kind);
        // Of two names of one kind the first is the code itself, but of clocks there are three.
        found.dedup_by_key(|found| match kind(found.name) {
            kind @ (Kind::User | Kind::Clock) => (kind, found.code.start),
            kind => (kind, 0),
        });
        let system = found.iter().find(|found| kind(found.name) == Kind::System);
        let system = system.map(|found| VirtAddr::new(found.code.start));
        let switch = |code: Range<u64>, kind| {
            let way_back = match kind {
                Kind::System | Kind::Call | Kind::User => WayBack::Instructions,
                Kind::Never => WayBack::Never,
                Kind::Clock => WayBack::FramePointer,
                Kind::More => WayBack::Continued(system?),
            };
            Some(SwitchingFunction { code, way_back })
        };
        Self(found.into_iter().filter_map(|found| switch(found.code, kind(found.name))).collect())
    }

    /// Their code.
    pub(crate) fn code(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|function| function.code.clone())
    }

    /// The function at an address of the target; the file is loaded that far above its own
    /// addresses.
    #[must_use]
    pub fn find(&self, addr: u64, bias: u64) -> Option<SwitchingFunction> {
        let linked = addr.wrapping_sub(bias);
        let found = self.0.iter().find(|function| function.code.contains(&linked))?;
        let code = found.code.start.wrapping_add(bias)..found.code.end.wrapping_add(bias);
        let way_back = match found.way_back {
            WayBack::Continued(system) => WayBack::Continued(system.wrapping_add(bias)),
            same => same,
        };
        Some(SwitchingFunction { code, way_back })
    }
}

/// Whether a walk ended where stacks were switched, and the one before could not be told.
pub fn is_lost<E: TableError>(end: &End<E>) -> bool {
    const LOST: [StackSwitchError<TableFault>; 2] =
        [StackSwitchError::Absent, StackSwitchError::NoWayBack];
    matches!(end, End::Table(error) if LOST.iter().any(|lost| lost.code() == error.code()))
}

/// The code to which the function of a goroutine returns, if Go's linker has made a file: nothing has called it.
pub(crate) fn end_of_goroutines(file: &ElfFile) -> Option<Range<u64>> {
    const NAMES: [&[u8]; 2] = [b"runtime.goexit.abi0", b"runtime.goexit"];
    let mut found = if is_go(file) { named(file, &NAMES).unwrap_or_default() } else { Vec::new() };
    found.sort_by_key(|found| found.name);
    Some(found.first()?.code.clone())
}

/// Whether Go's linker has made a file.
fn is_go(file: &ElfFile) -> bool {
    let sections = file.sections().unwrap_or_default();
    sections.iter().any(|section| section.name.ends_with(b".gopclntab"))
}
