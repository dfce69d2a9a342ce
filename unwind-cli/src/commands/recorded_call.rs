//! A call of an interpreter in a sample, as it is written.

use std::fmt;

use serde::Serialize;
use unwind_profile::recording::code_names::{InterpretedCall, InterpretedCode};
use unwind_target::Untrusted;

/// What stands in place of a function that may be inlined in the next one.
pub(crate) const MAYBE_INLINED: &str = "(or a function inlined in it)";

/// A call. Its texts may be shown as they are.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedCall {
    pub(crate) language: &'static str,
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    /// What may be inlined in the next call has neither name nor place.
    #[serde(skip)]
    may_be_inlined: bool,
}

impl RecordedCall {
    /// Its names have `limit` characters at most.
    pub(crate) fn new(call: &InterpretedCall, limit: usize) -> Self {
        let InterpretedCall { code, line } = call;
        let text = |text: &Untrusted| text.escaped().at_most(limit).to_string();
        Self {
            language: code.language.name(),
            function: code.function.as_ref().map(text),
            file: code.file.as_ref().map(text),
            line: Some(*line).filter(|&line| line > 0),
            may_be_inlined: **code == InterpretedCode::MAYBE_INLINED,
        }
    }
}

impl fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.may_be_inlined {
            return f.write_str(MAYBE_INLINED);
        }
        f.write_str(self.function.as_deref().unwrap_or("[unknown]"))?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " in {file}"),
            (None, _) => Ok(()),
        }
    }
}
