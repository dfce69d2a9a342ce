//! What is shown of a target's stacks: to people as text, to programs as JSON.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use serde::{Serialize, Serializer};
use unwind_core::{Frame, Origin, WordSize};

use crate::commands::stack::error::Incomplete;
use crate::commands::stack::source_lines;
use crate::commands::stack::walk::{EndReason, Method, Stack, StackEnd};
use crate::debug_files::DebugFiles;
use crate::demangle::{Parameters, demangle_with};
use crate::indexed_frames::NoRowError;
use crate::module::{Module, Modules};
use crate::symbols::NAME_LIMIT;
use crate::target::maps::{Backing, Mapping};
use crate::target::registers::CodeMode;
use crate::target::{Target, Thread};
use crate::untrusted::{Escaped, Untrusted, escaped, plain};

/// Everything that one run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this structure: it rises when a field changes its meaning
    /// or goes.
    pub(crate) schema: u32,
    pub(crate) process: i32,
    pub(crate) program: Untrusted,
    pub(crate) method: Method,
    pub(crate) threads: Vec<ThreadReport>,
    /// What is not as it should be, a line each.
    pub(crate) warnings: Vec<String>,
}

/// The stack of one thread.
#[derive(Debug, Serialize)]
pub(crate) struct ThreadReport {
    pub(crate) thread: i32,
    pub(crate) name: Option<Untrusted>,
    /// `x86-64` or `ia32`; nothing where the mode is unknown.
    pub(crate) arch: Option<&'static str>,
    /// The signal that ended the program, in the thread that got it.
    pub(crate) signal: Option<i32>,
    /// Innermost first.
    pub(crate) frames: Vec<FrameReport>,
    pub(crate) end: StackEnd,
}

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

/// How frames are named.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    /// Where what was stripped off files is.
    pub(crate) debug_files: Rc<DebugFiles>,
    /// Whether functions of C++ have their parameters.
    pub(crate) parameters: Parameters,
    /// Whether places in the source are looked for.
    pub(crate) lines: bool,
}

impl Naming {
    /// By names alone, as files have them.
    pub(crate) fn plain() -> Self {
        let debug_files = Rc::new(DebugFiles::default());
        Self { debug_files, parameters: Parameters::LeftOut, lines: false }
    }
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
            Origin::ConvertedTable => Self::Cfi,
            Origin::FramePointer => Self::Fp,
            Origin::Instructions => Self::Code,
            Origin::SignalContext => Self::Signal,
            _ => Self::Other,
        }
    }
}

impl Report {
    /// The version of the structure.
    const SCHEMA: u32 = 2;

    /// Finds names for what was walked. `stacks` are those of the target's
    /// threads, in the same order.
    pub(crate) fn new(
        target: &Target,
        stacks: Vec<Stack>,
        method: Method,
        naming: &Naming,
    ) -> Self {
        let mut warnings = target.warnings.clone();
        let mut troubles = BTreeMap::new();
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let addrs = frames.flat_map(|frame| {
            // What names a frame that its lookup address does not is its pc.
            [frame.pc.lookup_addr().get(), frame.pc.addr().get()]
        });
        target.modules.expect_functions(addrs, &naming.debug_files);
        let mut room = NameRoom { left: target.room.names, cut: false };
        let mut threads: Vec<_> = target
            .threads
            .iter()
            .zip(stacks)
            .map(|(thread, stack)| {
                let frames = stack.frames.iter();
                let frames = frames
                    .map(|frame| name(frame, target, naming.parameters, &mut troubles, &mut room))
                    .collect();
                let mut report = ThreadReport::new(thread, stack.mode, frames, stack.end);
                if method != Method::Fp {
                    report.add_missing_table(&target.modules, method);
                }
                report
            })
            .collect();
        if naming.lines {
            let mut frames: Vec<_> =
                threads.iter_mut().flat_map(|thread| &mut thread.frames).collect();
            warnings.extend(source_lines::add(
                &mut frames,
                &target.modules,
                naming.parameters,
                &mut room,
            ));
        }
        for module in target.modules.iter() {
            if let Some(wrong) =
                module.image_so_far().and_then(|image| image.file.wrong_debug_file())
            {
                warnings.push(format!("{}: {wrong}", escaped(&module.path)));
            }
        }
        if room.cut {
            warnings.push("names are cut: frames have the same names, and all are too long".into());
        }
        warnings.extend(troubles.into_iter().map(|(path, trouble)| format!("{path}: {trouble}")));
        Self {
            schema: Self::SCHEMA,
            process: target.process,
            program: target.program.clone(),
            method,
            threads,
            warnings,
        }
    }
}

impl Report {
    /// Whether every stack is known to be complete.
    ///
    /// # Errors
    ///
    /// [`Incomplete`] if one is not.
    pub(crate) fn check_complete(&self) -> Result<(), Incomplete> {
        Incomplete::check(self.threads.iter().map(|thread| &thread.end))
    }
}

impl ThreadReport {
    fn new(
        thread: &Thread,
        mode: Option<CodeMode>,
        frames: Vec<FrameReport>,
        end: StackEnd,
    ) -> Self {
        Self {
            thread: thread.id,
            name: thread.name.clone(),
            arch: mode.map(|mode| match mode {
                CodeMode::X86_64 => "x86-64",
                CodeMode::Ia32 => "ia32",
            }),
            signal: thread.signal,
            frames,
            end,
        }
    }

    /// Says so if the walk ended in code whose file has no tables, which is why
    /// most walks end early.
    fn add_missing_table(&mut self, modules: &Modules, method: Method) {
        let Some(last) = self.frames.last() else { return };
        let ends_early = matches!(
            self.end.reason,
            EndReason::NoRow | EndReason::Step | EndReason::NoCode | EndReason::FramePointerZero
        );
        if self.end.complete || !ends_early {
            return;
        }
        let word = match self.arch {
            Some("x86-64") => WordSize::Eight,
            Some(_) => WordSize::Four,
            None => return,
        };
        let lookup = last.lookup();
        let module = modules.find(lookup);
        let image = module.and_then(|module| module.image().ok());
        let (Some(object), Some(image)) = (&last.object, image) else { return };
        let object = file_name(object);
        let has_sframe = image.sframe() != Ok(None);
        let text = match method {
            Method::Sframe if !has_sframe => format!("; {object} has no .sframe"),
            Method::Auto | Method::Cfi => match image.call_frame_row(lookup, word) {
                Err(NoRowError::Cfi(section, error)) => {
                    format!("; no row can say what the {section} of {object} does: {error}")
                }
                Err(NoRowError::Elf(error)) => format!("; {object}: {error}"),
                Ok(None) if image.has_call_frames() => match image.unread_call_frames() {
                    Some(error) => format!("; {object}: {error}"),
                    None => return,
                },
                Ok(None) if method == Method::Cfi => {
                    format!("; {object} has no .eh_frame or .debug_frame")
                }
                Ok(None) if !has_sframe => {
                    format!("; {object} has neither .sframe nor .eh_frame or .debug_frame")
                }
                Ok(_) => return,
            },
            Method::CfiSframe => match image.built_so_far() {
                Some(Ok(Some(table))) => {
                    match (table.why_missing(lookup.wrapping_sub(image.bias)), table.unread) {
                        (Some((section, reason)), _) => {
                            format!(
                                "; no table can say what the {section} of {object} does: {reason}"
                            )
                        }
                        (None, Some(error)) => format!("; {object}: {error}"),
                        (None, None) => return,
                    }
                }
                Some(Ok(None)) => format!("; {object} has no .eh_frame or .debug_frame"),
                _ => return,
            },
            _ => return,
        };
        self.end.text.push_str(&text);
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

/// Names a frame. What is wrong with the files of its code goes to `troubles`,
/// by path.
fn name(
    frame: &Frame,
    target: &Target,
    parameters: Parameters,
    troubles: &mut BTreeMap<Untrusted, String>,
    room: &mut NameRoom,
) -> FrameReport {
    let (mut report, trouble) = FrameReport::new(frame, |addr| target.modules.find(addr));
    if let (Some(path), Some(trouble)) = (&report.object, trouble) {
        troubles.insert(path.clone(), trouble);
    }
    if report.object.is_none() {
        report.object = name_of_mapping(&target.mappings, report.lookup());
    }
    if let Some(mangled) = &report.mangled
        && let Some(whole) = demangled(mangled, parameters)
    {
        report.function = Some(whole);
    }
    room.fit([&mut report.object, &mut report.function, &mut report.mangled]);
    report
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
    /// Some were cut.
    cut: bool,
}

impl NameRoom {
    /// What a name may have when no room is left.
    const SHORT: usize = 64;

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
                self.cut = true;
            }
        }
    }
}

/// What code without a file is called: `[anonymous]` if a just-in-time compiler
/// made it, or by the kernel's name.
fn name_of_mapping(mappings: &[Mapping], addr: u64) -> Option<Untrusted> {
    let mut code = mappings.iter().filter(|mapping| mapping.executable);
    let mapping = code.find(|mapping| mapping.range.contains(&addr))?;
    Some(match &mapping.backing {
        Backing::Named(name) => name.as_slice().into(),
        _ => "[anonymous]".into(),
    })
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
