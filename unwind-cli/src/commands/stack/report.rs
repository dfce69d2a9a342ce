//! What is shown of a target's stacks: to people as text, to programs as JSON.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;
use unwind_core::{Frame, WordSize};

use crate::commands::stack::error::Incomplete;
use crate::commands::stack::frame_report::{FrameReport, NameRoom, demangled, file_name};
use crate::commands::stack::source_lines;
use crate::commands::stack::told_code::ToldCode;
use crate::commands::stack::walk::{EndReason, Method, Stack, StackEnd};
use crate::debug_files::DebugFiles;
use crate::demangle::Parameters;
use crate::indexed_frames::NoRowError;
use crate::module::Modules;
use crate::target::maps::{Backing, Mapping};
use crate::target::registers::CodeMode;
use crate::target::{Target, Thread};
use crate::untrusted::{Untrusted, escaped};

/// Everything that one run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this structure: it rises when a field changes its meaning
    /// or goes.
    pub(crate) schema: u32,
    pub(crate) process: i32,
    pub(crate) program: Untrusted,
    pub(crate) method: Method,
    /// Nothing was stopped: no stack counts as complete.
    pub(crate) no_stop: bool,
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
        let mut room = NameRoom::new(target.room.names);
        let told = ToldCode::of(target);
        let mut threads: Vec<_> = target
            .threads
            .iter()
            .zip(stacks)
            .map(|(thread, stack)| {
                let frames = stack.frames.iter();
                let frames = frames
                    .map(|frame| {
                        name(frame, target, naming.parameters, &told, &mut troubles, &mut room)
                    })
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
        warnings.extend(told.missing());
        if room.is_cut() {
            warnings.push("names are cut: frames have the same names, and all are too long".into());
        }
        warnings.extend(troubles.into_iter().map(|(path, trouble)| format!("{path}: {trouble}")));
        Self {
            schema: Self::SCHEMA,
            process: target.process,
            program: target.program.clone(),
            method,
            no_stop: target.no_stop,
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

/// Names a frame. What is wrong with the files of its code goes to `troubles`,
/// by path.
fn name(
    frame: &Frame,
    target: &Target,
    parameters: Parameters,
    told: &ToldCode<'_>,
    troubles: &mut BTreeMap<Untrusted, String>,
    room: &mut NameRoom,
) -> FrameReport {
    let (mut report, trouble) = FrameReport::new(frame, |addr| target.modules.find(addr));
    if let (Some(path), Some(trouble)) = (&report.object, trouble) {
        troubles.insert(path.clone(), trouble);
    }
    if report.object.is_none()
        && let Some(mapping) = code_at(&target.mappings, report.lookup())
    {
        report.object = Some(name_of_mapping(mapping));
        if let Some((name, past)) = told.function(mapping, report.lookup()) {
            report.function = Some(name);
            report.function_offset = Some(past.saturating_add(u64::from(!report.exact)));
        }
    }
    if let Some(mangled) = &report.mangled
        && let Some(whole) = demangled(mangled, parameters)
    {
        report.function = Some(whole);
    }
    room.fit([&mut report.object, &mut report.function, &mut report.mangled]);
    report
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
