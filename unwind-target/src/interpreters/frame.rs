//! A frame of an interpreter, as it is shown.

use std::fmt;

use serde::Serialize;

use crate::untrusted::Untrusted;

/// A call of a function that an interpreter executes. Its text is the function and its place in the
/// source: `Worker.run at worker.py:7`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InterpretedFrame {
    /// The language: `python`, `javascript` or `wasm`.
    pub language: &'static str,
    /// What executes it.
    pub kind: CallKind,
    /// The function, with the classes and functions that it is in where the interpreter has them.
    pub function: Option<Untrusted>,
    /// The path of the source, as the interpreter has it.
    pub file: Option<Untrusted>,
    /// From 1.
    pub line: Option<u32>,
    /// The line where the function starts, if that is known.
    pub start: Option<u32>,
    /// The text of the line, if [that was read](crate::Stacks::read_source).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Untrusted>,
}

/// What executes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CallKind {
    /// Bytecode.
    #[default]
    Interpreted,
    /// Code that was compiled of each bytecode, by V8's Sparkplug.
    Baseline,
    /// Code that V8's Maglev has optimized.
    Maglev,
    /// Code that V8's `TurboFan` has optimized.
    Optimized,
    /// The same code, or Maglev's, of a function that calls it.
    Inlined,
    /// A function of the interpreter's own.
    Builtin,
    /// A function of WebAssembly.
    Wasm,
}

impl fmt::Display for InterpretedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{function}")?,
            None if self.kind == CallKind::Wasm => f.write_str("function")?,
            None if self.language == "javascript" => f.write_str("<anonymous>")?,
            None => f.write_str("??")?,
        }
        match (&self.file, self.line, self.start) {
            (Some(file), Some(line), _) => write!(f, " at {file}:{line}")?,
            (Some(file), None, Some(start)) => write!(f, " in {file}, starts at line {start}")?,
            (Some(file), None, None) => write!(f, " at {file}")?,
            (None, ..) => {}
        }
        match self.kind {
            CallKind::Inlined => f.write_str(" (inlined)"),
            CallKind::Builtin => f.write_str(" (builtin)"),
            _ => Ok(()),
        }
    }
}

/// What is known of the frames of an interpreter in one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Interpreted {
    /// The interpreter with its version: `CPython 3.11`.
    pub interpreter: String,
    /// Each of its frames is at the native frame that executes it, and none is missing.
    pub complete: bool,
    /// Why not; empty if it is complete.
    pub text: String,
    /// Frames whose native frame is not known, innermost first.
    pub unplaced: Vec<InterpretedFrame>,
}
