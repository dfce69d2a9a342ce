//! What an address of a program is called: its function, file and place in the source.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::{Serialize, Serializer};

use crate::demangle::{Parameters, demangle_with};
use crate::jit::told_code::ToldCode;
use crate::loaded::module::Module;
use crate::symbols::NAME_LIMIT;
use crate::target::maps::{Backing, Mapping};
use crate::untrusted::{Escaped, Untrusted, escaped, plain};

/// What is known of an address of a program. Its text is the function with the distance from its start, the
/// file, and the place in the source, as far as they are known: `main+0x12 (program) at program.c:7`.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Symbol {
    /// The path of the file that the code is from; `[vdso]`; `[jit]` if a compiler has registered it by
    /// GDB's JIT interface; `[anonymous]` for other code without a file; nothing where there is no code.
    pub object: Option<Untrusted>,
    /// The address in the object's link-time addresses.
    #[serde(serialize_with = "optional_hex")]
    pub object_pc: Option<u64>,
    /// The function, demangled.
    pub function: Option<Untrusted>,
    /// The function's name in the object, where it was mangled.
    pub mangled: Option<Untrusted>,
    /// Bytes from the function's start to the address.
    pub function_offset: Option<u64>,
    /// Where it is in the source.
    #[serde(flatten)]
    pub source: Source,
}

/// Where in the source an address is. `file`, `line` and `column` are of the function that has the frame,
/// [`Symbol::function`]. Where others are inlined, that is where it calls the outermost one of them, and each
/// [`Inlined`] has its own place; in the order of a stack they stand before the symbol.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Source {
    /// The path of the file, as the compiler had it.
    pub file: Option<Untrusted>,
    /// From 1.
    pub line: Option<u32>,
    /// From 1.
    pub column: Option<u32>,
    /// The text of the line, if [that was read](crate::Stacks::read_source).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Untrusted>,
    /// The functions that are inlined there, innermost first.
    pub inlined: Vec<Inlined>,
}

/// A function that has no frame of its own: its code is in that of its caller. Its text is the function
/// and its place in the source: `inner at program.c:7`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Inlined {
    /// The function, demangled.
    pub function: Option<Untrusted>,
    /// The function's name in the object, where it was mangled.
    pub mangled: Option<Untrusted>,
    /// The path of the file, as the compiler had it.
    pub file: Option<Untrusted>,
    /// From 1.
    pub line: Option<u32>,
    /// From 1.
    pub column: Option<u32>,
    /// The text of the line, if [that was read](crate::Stacks::read_source).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Untrusted>,
}

impl Symbol {
    /// What the code at an address is called by its file. A trampoline is named by its first byte, where nothing
    /// has the one before.
    ///
    /// # Errors
    ///
    /// What is wrong with the file; what the symbol has up to then holds.
    pub(super) fn name(
        &mut self,
        module: &Module,
        pc: u64,
        lookup: u64,
        is_trampoline: bool,
    ) -> Result<(), String> {
        self.object = Some(module.path.as_path().into());
        let image = module.image().map_err(|error| error.to_string())?;
        let object_pc = pc.wrapping_sub(image.bias);
        self.object_pc = Some(object_pc);
        let find = |addr| image.function(addr).map_err(|error| error.to_string());
        let function = match find(lookup)? {
            Some(function) => Some(function),
            // After a call another function may begin.
            None if is_trampoline => find(pc)?,
            None => None,
        };
        if let Some(function) = function {
            self.function_offset = Some(object_pc.wrapping_sub(function.start));
            self.function = Some(function.name);
            self.mangled = function.mangled;
        }
        Ok(())
    }

    /// What code without a file is called, by what its compiler tells. It is `past` bytes after the
    /// address that is looked up.
    pub(super) fn name_without_file(
        &mut self,
        mappings: &[Mapping],
        told: &ToldCode<'_>,
        lookup: u64,
        past: u64,
    ) {
        let Some(mapping) = code_at(mappings, lookup) else { return };
        self.object = Some(name_of_mapping(mapping));
        if let Some((name, offset)) = told.function(mapping, lookup) {
            self.function = Some(name);
            self.function_offset = Some(offset.saturating_add(past));
        }
    }

    /// Has the function's name as it was in the source.
    pub(super) fn demangle(&mut self, parameters: Parameters) {
        if let Some(mangled) = &self.mangled
            && let Some(whole) = demangled(mangled, parameters)
        {
            self.function = Some(whole);
        }
    }

    /// The last part of the object's path.
    #[must_use]
    pub fn object_name(&self) -> Option<Escaped<'_>> {
        self.object.as_ref().map(file_name)
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.function, self.object_name(), self.object_pc) {
            (Some(function), Some(object), _) => {
                write!(f, "{function}")?;
                // DWARF has names of functions that no symbol has.
                if let Some(offset) = self.function_offset {
                    write!(f, "+{offset:#x}")?;
                }
                write!(f, " ({object})")?;
                write_line(f, self.source.file.as_ref(), self.source.line)
            }
            (_, Some(object), Some(pc)) => write!(f, "?? ({object}+{pc:#x})"),
            (_, Some(object), None) => write!(f, "?? ({object})"),
            (_, None, _) => f.write_str("??"),
        }
    }
}

impl fmt::Display for Inlined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function}")?,
            None => f.write_str("??")?,
        }
        write_line(f, self.file.as_ref(), self.line)
    }
}

/// Writes a file and a line after what is there, if they are known.
fn write_line(
    f: &mut fmt::Formatter<'_>,
    file: Option<&Untrusted>,
    line: Option<u32>,
) -> fmt::Result {
    match (file, line) {
        (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
        (Some(file), None) => write!(f, " at {file}"),
        (None, _) => Ok(()),
    }
}

/// The mapping of code at an address.
fn code_at(mappings: &[Mapping], addr: u64) -> Option<&Mapping> {
    let mut code = mappings.iter().filter(|mapping| mapping.executable);
    code.find(|mapping| mapping.range.contains(&addr))
}

/// What code without a file is called: `[anonymous]` if a just-in-time compiler
/// made it, or by the kernel's name.
fn name_of_mapping(mapping: &Mapping) -> Untrusted {
    match &mapping.backing {
        Backing::Named(name) => name.as_slice().into(),
        _ => "[anonymous]".into(),
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
pub(super) fn hex<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:#x}"))
}

fn optional_hex<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => hex(value, serializer),
        None => serializer.serialize_none(),
    }
}
