//! An explanation for programs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use unwind_core::StepError;
use unwind_target::{Frame, Interpreted, StackEnd, Untrusted};

use crate::commands::explain::registers::register_name;
use crate::commands::explain::row_place::RowPlace;
use crate::commands::explain::text::{Explanation, place_of};
use crate::commands::explain::text::{advice, gdb_says, row_text};
use crate::commands::explain::walk::Step;
use crate::commands::explain::watched::{Event, Source};

/// The version of the structure: it rises when a field changes its meaning or goes.
pub(super) const SCHEMA: u32 = 1;

/// One stack.
#[derive(Serialize)]
pub(super) struct ExplanationReport<'e> {
    schema: u32,
    thread: i32,
    name: Option<&'e Untrusted>,
    arch: Option<&'static str>,
    interpreted: Option<&'e Interpreted>,
    frames: Vec<ExplainedFrame<'e>>,
    end: &'e StackEnd,
    advice: Option<&'static str>,
    gdb: Cow<'static, str>,
    /// What is said of a sample's stack elsewhere.
    account: Option<&'e str>,
}

#[derive(Serialize)]
struct ExplainedFrame<'e> {
    #[serde(flatten)]
    frame: &'e Frame,
    registers: BTreeMap<String, Hex>,
    cfa: Option<Hex>,
    steps: Vec<StepReport<'e>>,
}

/// What was asked for to find the caller.
#[derive(Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
enum StepReport<'e> {
    Row { by: &'static str, at: Hex, row: String, place: Option<RowPlace>, problem: Option<String> },
    NoRow { by: &'static str, at: Hex },
    BadRow { by: &'static str, at: Hex, problem: &'e str },
    Read { at: Hex, bytes: Option<String>, problem: Option<String> },
    Code { at: Hex, is_code: bool },
    Trampoline { at: Hex, is_trampoline: bool },
}

/// A number as hexadecimal text.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// A word for where rows are looked up.
const fn word(source: Source) -> &'static str {
    match source {
        Source::Sframe => "sframe",
        Source::CallFrames => "cfi",
        Source::Dump => "dump",
        Source::ProgramStart => "start",
        Source::SignalTrampolines => "signal",
        Source::Instructions => "code",
        Source::WildCall => "call",
        Source::FramePointer => "fp",
        Source::StackSwitch => "stack-switch",
        Source::Pushes => "code-to-return",
    }
}

impl<'e> ExplanationReport<'e> {
    pub(super) fn new(explanation: &'e Explanation<'e>, account: Option<&'e str>) -> Self {
        let Explanation { thread, steps, failure, .. } = explanation;
        let failure: Option<StepError> = *failure;
        let frames = thread.frames.iter().zip(*steps);
        Self {
            schema: SCHEMA,
            thread: thread.id,
            name: thread.name.as_ref(),
            arch: thread.arch,
            interpreted: thread.interpreted.as_ref(),
            frames: frames.map(|(frame, step)| explanation.frame(frame, step)).collect(),
            end: &thread.end,
            advice: advice(&thread.end, failure),
            gdb: gdb_says(&thread.end, steps, failure),
            account,
        }
    }
}

impl Explanation<'_> {
    fn frame<'e>(&self, frame: &'e Frame, step: &'e Step) -> ExplainedFrame<'e> {
        let known = step.registers.iter().zip(0_u16..);
        let registers = known.filter_map(|(value, number)| {
            Some((register_name(number, self.is_64), Hex((*value)?)))
        });
        ExplainedFrame {
            frame,
            registers: registers.collect(),
            cfa: step.frame.cfa.map(Hex),
            steps: step.events.iter().map(|event| self.step(frame, event)).collect(),
        }
    }

    fn step<'e>(&self, frame: &Frame, event: &'e Event) -> StepReport<'e> {
        match event {
            Event::Lookup { source, addr, found } => {
                let (by, at) = (word(*source), Hex(*addr));
                match found {
                    Ok(Some(row)) => {
                        let module = self.modules.find(frame.lookup());
                        let place = place_of(*source, module, *addr);
                        let (place, problem) = match place {
                            Ok(place) => (place, None),
                            Err(problem) => (None, Some(problem)),
                        };
                        StepReport::Row { by, at, row: row_text(row, self.is_64), place, problem }
                    }
                    Ok(None) => StepReport::NoRow { by, at },
                    Err(problem) => StepReport::BadRow { by, at, problem },
                }
            }
            Event::Read { addr, bytes } => {
                let hex =
                    |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let (bytes, problem) = match bytes {
                    Ok(bytes) => (Some(hex(bytes)), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                StepReport::Read { at: Hex(*addr), bytes, problem }
            }
            Event::Code { addr, is_code } => StepReport::Code { at: Hex(*addr), is_code: *is_code },
            Event::Trampoline { addr, is_trampoline } => {
                StepReport::Trampoline { at: Hex(*addr), is_trampoline: *is_trampoline }
            }
        }
    }
}
