//! How frames and addresses are named.

use std::rc::Rc;

use crate::demangle::Parameters;
use crate::files::debug_files::DebugFiles;
use crate::lines::LineReader;
use crate::notices::Notices;

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

    /// Tells these of files that are not used, instead of the [warnings](crate::Stacks::warnings).
    #[must_use]
    pub fn notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }
}
