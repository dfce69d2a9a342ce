//! What is shown of one frame: to people as text, to programs as JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::{Serialize, Serializer};
use unwind_core::{Frame, Origin};

use crate::demangle::{Parameters, demangle_with};
use crate::module::Module;
use crate::symbols::NAME_LIMIT;
use crate::untrusted::{Escaped, Untrusted, escaped, plain};

/// One frame.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FrameReport {
    #[serde(serialize_with = "hex")]
    pub(crate) pc: u64,
    /// The stack pointer in this frame.
    #[serde(serialize_with = "hex")]
    pub(crate) sp: u64,
    /// The pc is that of an interrupted instruction, not a return address.
    pub(crate) exact: bool,
    pub(crate) found_by: FoundBy,
    /// The row that covers the callee could not be used.
    pub(crate) after_failure: bool,
    /// Callers may be missing between the frame before and this one.
    pub(crate) after_gap: bool,
    /// The frame pointer was taken as unchanged although the row says that it was
    /// saved.
    pub(crate) fp_assumed: bool,
    /// The path of the file that the code is from, or `[vdso]`, or
    /// `[anonymous]` for code without a file; nothing where there is no code.
    pub(crate) object: Option<Untrusted>,
    /// The pc in the object's link-time addresses.
    #[serde(serialize_with = "optional_hex")]
    pub(crate) object_pc: Option<u64>,
    /// The function, demangled.
    pub(crate) function: Option<Untrusted>,
    /// The function's name in the object, where it was mangled.
    pub(crate) mangled: Option<Untrusted>,
    /// Bytes from the function's start to the pc.
    pub(crate) function_offset: Option<u64>,
    #[serde(flatten)]
    pub(crate) source: Source,
}

/// Where in the source a frame is.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Source {
    /// The path of the file, as the compiler had it.
    pub(crate) file: Option<Untrusted>,
    /// From 1.
    pub(crate) line: Option<u32>,
    /// From 1.
    pub(crate) column: Option<u32>,
    /// The functions that are inlined there, innermost first.
    pub(crate) inlined: Vec<InlinedReport>,
}

/// A function that has no frame of its own: its code is in that of its caller.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InlinedReport {
    /// The function, demangled.
    pub(crate) function: Option<Untrusted>,
    /// The function's name in the object, where it was mangled.
    pub(crate) mangled: Option<Untrusted>,
    /// The path of the file, as the compiler had it.
    pub(crate) file: Option<Untrusted>,
    /// From 1.
    pub(crate) line: Option<u32>,
    /// From 1.
    pub(crate) column: Option<u32>,
}

/// How a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FoundBy {
    /// The thread's registers: the frame that it executes.
    Registers,
    /// An SFrame table.
    Sframe,
    /// An SFrame table that was made of call frame information.
    Cfi,
    /// A frame pointer.
    Fp,
    /// The instructions at the pc of the callee.
    Code,
    /// The registers that the kernel saved for a signal handler.
    Signal,
    /// Another way.
    Other,
}

impl From<Origin> for FoundBy {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Registers => Self::Registers,
            Origin::Table => Self::Sframe,
            Origin::CallFrames => Self::Cfi,
            Origin::FramePointer => Self::Fp,
            Origin::Instructions => Self::Code,
            Origin::SignalContext => Self::Signal,
            _ => Self::Other,
        }
    }
}

impl FrameReport {
    /// Names a frame by the module that `find` has at an address. Returns what
    /// is wrong with the module's file, too.
    pub(crate) fn new<'m>(
        frame: &Frame,
        find: impl Fn(u64) -> Option<&'m Module>,
    ) -> (Self, Option<String>) {
        let mut report = Self {
            pc: frame.pc.addr().get(),
            sp: frame.sp,
            exact: frame.pc.is_exact(),
            found_by: frame.provenance.origin().into(),
            after_failure: frame.provenance.is_after_failure(),
            after_gap: frame.provenance.is_after_gap(),
            fp_assumed: frame.provenance.is_fp_assumed(),
            object: None,
            object_pc: None,
            function: None,
            mangled: None,
            function_offset: None,
            source: Source::default(),
        };
        // A handler returns to the first byte of its trampoline, which was not
        // called.
        let Some(module) = find(report.lookup()).or_else(|| find(report.pc)) else {
            return (report, None);
        };
        report.object = Some(module.path.as_path().into());
        let trouble = report.name_function(module).err();
        (report, trouble)
    }

    fn name_function(&mut self, module: &Module) -> Result<(), String> {
        let image = module.image().map_err(|error| error.to_string())?;
        let object_pc = self.pc.wrapping_sub(image.bias);
        self.object_pc = Some(object_pc);
        let find = |addr| image.function(addr).map_err(|error| error.to_string());
        let function = match find(self.lookup())? {
            Some(function) => Some(function),
            None => find(self.pc)?,
        };
        if let Some(function) = function {
            self.function_offset = Some(object_pc.wrapping_sub(function.start));
            self.function = Some(function.name);
            self.mangled = function.mangled;
        }
        Ok(())
    }

    /// The address to ask a table or the symbols for: a return address may be
    /// that of the next function already.
    pub(crate) const fn lookup(&self) -> u64 {
        if self.exact { self.pc } else { self.pc.wrapping_sub(1) }
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &Untrusted) -> Escaped<'_> {
    let name = Path::new(OsStr::from_bytes(path.as_bytes())).file_name();
    name.map_or(path.escaped(), escaped)
}

/// A mangled name as it was in the source.
pub(crate) fn demangled(mangled: &Untrusted, parameters: Parameters) -> Option<Untrusted> {
    let name = plain(mangled.as_bytes())?;
    let limit = usize::try_from(NAME_LIMIT).unwrap_or(usize::MAX);
    demangle_with(name, limit, parameters).map(Untrusted::from)
}

/// How many bytes the names of frames may have from here on. Many frames may be of
/// one file or function, whose name is as long as its owner likes.
pub(crate) struct NameRoom {
    left: usize,
    is_cut: bool,
}

impl NameRoom {
    /// What a name may have when no room is left.
    const SHORT: usize = 64;

    /// Room for this many bytes.
    pub(crate) const fn new(left: usize) -> Self {
        Self { left, is_cut: false }
    }

    /// Whether names were cut.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Cuts the names of a frame if there is no room for them any more.
    pub(crate) fn fit<const N: usize>(&mut self, names: [&mut Option<Untrusted>; N]) {
        let len = |name: &Option<Untrusted>| name.as_ref().map_or(0, |name| name.as_bytes().len());
        let all = names.iter().fold(0_usize, |sum, name| sum.saturating_add(len(name)));
        if let Some(left) = self.left.checked_sub(all) {
            self.left = left;
            return;
        }
        for name in names.into_iter().flatten() {
            if let Some(short) = name.as_bytes().get(..Self::SHORT) {
                *name = Untrusted::from(&[short, "…".as_bytes()].concat());
                self.is_cut = true;
            }
        }
    }
}

/// As text, since the numbers of many JSON readers end at 53 bits.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn hex<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:#x}"))
}

fn optional_hex<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => hex(value, serializer),
        None => serializer.serialize_none(),
    }
}
