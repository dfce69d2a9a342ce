//! The stacks of a target, with names.

use serde::Serialize;
use unwind_core::WordSize;

use crate::interpreters::frame::Interpreted;
use crate::interpreters::join::join;
use crate::interpreters::runs::ReadFrames;
use crate::loaded::module::Modules;
use crate::rows::indexed_frames::NoRowError;
use crate::stack::frame::Frame;
use crate::stack::namer::Namer;
use crate::stack::naming::Naming;
use crate::stack::walk::{EndReason, Method, Stack, StackEnd};
use crate::target::registers::CodeMode;
use crate::target::{Target, Thread};
use crate::untrusted::Untrusted;

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
    /// What is known of its frames of an interpreter, if it has any.
    pub interpreted: Option<Interpreted>,
    /// Why there are no more.
    pub end: StackEnd,
}

impl Stacks {
    /// The version of the structure.
    const SCHEMA: u32 = 2;

    /// Finds names for what was walked. `stacks` are those of the target's
    /// threads, in the same order.
    #[doc(hidden)]
    #[must_use]
    pub fn new(target: &Target, stacks: Vec<Stack>, method: Method, naming: &Naming) -> Self {
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let addrs = frames.flat_map(|frame| {
            // What names a frame that its lookup address does not is its pc.
            [frame.pc.lookup_addr().get(), frame.pc.addr().get()]
        });
        target.modules.expect_functions(addrs, &naming.debug_files);
        let process = target.is_process.then_some(target.process);
        let (mappings, modules) = (&target.mappings, &target.modules);
        let mut namer = Namer::new(process, mappings, modules, naming, target.room.names);
        let mut threads: Vec<_> = target
            .threads
            .iter()
            .zip(stacks)
            .map(|(thread, stack)| {
                let frames = namer.frames(&stack.frames);
                let mut named = ThreadStack::new(thread, stack.mode, frames, stack.end);
                if method != Method::Fp {
                    named.add_missing_table(&target.modules, method);
                }
                named.add_interpreted(thread, target);
                named
            })
            .collect();
        let frames = threads.iter_mut().flat_map(|thread| &mut thread.frames);
        let mut symbols: Vec<_> = frames.map(|frame| (frame.lookup(), &mut frame.symbol)).collect();
        let mut warnings = target.warnings.clone();
        warnings.extend(namer.finish(&mut symbols));
        warnings.extend(target.interpreted.iter().filter_map(ReadFrames::unknown));
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

    /// Leaves the frames alone that execute calls of an interpreter.
    pub fn keep_interpreted(&mut self) {
        for thread in &mut self.threads {
            thread.frames.retain(|frame| !frame.interpreted.is_empty());
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
            interpreted: None,
            end,
        }
    }

    /// Puts frames of interpreters at the native ones, and says so if some may be missing.
    fn add_interpreted(&mut self, thread: &Thread, target: &Target) {
        let Ok(registers) = thread.registers else { return };
        if self.arch != Some("x86-64") {
            return;
        }
        for read in target.interpreted.iter().filter(|read| read.unknown().is_none()) {
            let of_thread = read.threads.get(&registers.fs_base);
            let is_whole = self.end.reason.is_outermost();
            let Some(joined) = join(&mut self.frames, is_whole, read, of_thread) else { continue };
            if !joined.complete && self.end.complete {
                self.end.complete = false;
                let text = format!(", but frames of {} may be missing", joined.interpreter);
                self.end.text.push_str(&text);
            }
            self.interpreted = Some(joined);
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
