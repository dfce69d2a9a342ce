//! The stacks of a target, with names.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;
use unwind_core::{Frame as WalkedFrame, WordSize};

use crate::demangle::Parameters;
use crate::files::debug_files::DebugFiles;
use crate::jit::told_code::ToldCode;
use crate::lines::LineReader;
use crate::loaded::module::Modules;
use crate::notices::Notices;
use crate::rows::indexed_frames::NoRowError;
use crate::stack::frame::Frame;
use crate::stack::source_lines;
use crate::stack::symbol::NameRoom;
use crate::stack::walk::{EndReason, Method, Stack, StackEnd};
use crate::target::registers::CodeMode;
use crate::target::{Target, Thread};
use crate::untrusted::{Untrusted, escaped};

/// The stacks of a process or a core file, with names.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stacks {
    /// The version of this structure as JSON: it rises when a field changes its meaning
    /// or goes.
    pub schema: u32,
    /// The id of the process; 0 where a core file does not say it.
    pub process: i32,
    /// What the program calls itself.
    pub program: Untrusted,
    /// How callers were looked for.
    pub method: Method,
    /// Nothing was stopped: no stack counts as complete.
    pub no_stop: bool,
    /// The first thread of a process first; that of a core which got the signal.
    pub threads: Vec<ThreadStack>,
    /// What is not as it should be, a line each, which a terminal may show.
    pub warnings: Vec<String>,
}

/// The stack of one thread.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ThreadStack {
    /// The id of the thread.
    #[serde(rename = "thread")]
    pub id: i32,
    /// What it calls itself, where that is known.
    pub name: Option<Untrusted>,
    /// `x86-64` or `ia32`; nothing where the mode is unknown.
    pub arch: Option<&'static str>,
    /// The signal that ended the program, in the thread that got it.
    pub signal: Option<i32>,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Why there are no more.
    pub end: StackEnd,
}

/// How frames are named.
#[derive(Clone, Debug)]
pub struct Naming {
    /// Where what was stripped off files is.
    pub(crate) debug_files: Rc<DebugFiles>,
    /// Whether functions of C++ have their parameters.
    pub(crate) parameters: Parameters,
    /// Who reads places in the source, if somebody does.
    pub(crate) lines: Option<LineReader>,
    /// Which are told of files that are not used.
    pub(crate) notices: Notices,
}

impl Default for Naming {
    fn default() -> Self {
        Self { parameters: Parameters::Shown, lines: Some(LineReader::Here), ..Self::plain() }
    }
}

impl Naming {
    /// By symbols and by lines of the source, which [this process](LineReader::Here) reads, also those that were stripped
    /// off and are in `/usr/lib/debug`; functions of C++ with their parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// By symbols alone, and functions of C++ without their parameters.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            debug_files: Rc::new(DebugFiles::default()),
            parameters: Parameters::LeftOut,
            lines: None,
            notices: Notices::default(),
        }
    }

    /// Looks here for what was stripped off files.
    #[must_use]
    pub fn debug_files(self, debug_files: DebugFiles) -> Self {
        Self { debug_files: Rc::new(debug_files), ..self }
    }

    /// Has functions of C++ without their parameters.
    #[must_use]
    pub fn short(self) -> Self {
        Self { parameters: Parameters::LeftOut, ..self }
    }

    /// Has lines and inlined functions read this way; with `None` there are none.
    #[must_use]
    pub fn lines(self, reader: Option<LineReader>) -> Self {
        Self { lines: reader, ..self }
    }

    /// Tells these of files that are not used, instead of the [warnings](Stacks::warnings).
    #[must_use]
    pub fn notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }
}

impl Stacks {
    /// The version of the structure.
    const SCHEMA: u32 = 2;

    /// Finds names for what was walked. `stacks` are those of the target's
    /// threads, in the same order.
    #[doc(hidden)]
    #[must_use]
    pub fn new(target: &Target, stacks: Vec<Stack>, method: Method, naming: &Naming) -> Self {
        let mut warnings = target.warnings.clone();
        let mut troubles = BTreeMap::new();
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let addrs = frames.flat_map(|frame| {
            // What names a frame that its lookup address does not is its pc.
            [frame.pc.lookup_addr().get(), frame.pc.addr().get()]
        });
        target.modules.expect_functions(addrs, &naming.debug_files);
        let mut room = NameRoom::new(target.room.names);
        let process = target.is_process.then_some(target.process);
        let told = ToldCode::new(process, &target.mappings, naming.notices.clone());
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
                let mut report = ThreadStack::new(thread, stack.mode, frames, stack.end);
                if method != Method::Fp {
                    report.add_missing_table(&target.modules, method);
                }
                report
            })
            .collect();
        if let Some(reader) = &naming.lines {
            let frames = threads.iter_mut().flat_map(|thread| &mut thread.frames);
            let mut symbols: Vec<_> =
                frames.map(|frame| (frame.lookup(), &mut frame.symbol)).collect();
            warnings.extend(source_lines::add(
                &mut symbols,
                &target.modules,
                reader,
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

impl ThreadStack {
    fn new(thread: &Thread, mode: Option<CodeMode>, frames: Vec<Frame>, end: StackEnd) -> Self {
        Self {
            id: thread.id,
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
        let (Some(object), Some(image)) = (last.symbol.object_name(), image) else { return };
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
    frame: &WalkedFrame,
    target: &Target,
    parameters: Parameters,
    told: &ToldCode<'_>,
    troubles: &mut BTreeMap<Untrusted, String>,
    room: &mut NameRoom,
) -> Frame {
    let (mut named, trouble) = Frame::new(frame, |addr| target.modules.find(addr));
    let (lookup, past) = (named.lookup(), u64::from(!named.exact));
    let symbol = &mut named.symbol;
    if let (Some(path), Some(trouble)) = (&symbol.object, trouble) {
        troubles.insert(path.clone(), trouble);
    }
    if symbol.object.is_none() {
        symbol.name_without_file(&target.mappings, told, lookup, past);
    }
    symbol.demangle(parameters);
    room.fit([&mut symbol.object, &mut symbol.function, &mut symbol.mangled]);
    named
}
