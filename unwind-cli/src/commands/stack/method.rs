//! The option `--method`.

use clap::ValueEnum;
use unwind_target::Method;

/// How frames are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MethodArg {
    /// By SFrame tables where there are some, else as `cfi` does, else as `fp` does.
    Auto,
    /// By SFrame tables alone.
    Sframe,
    /// By call frame information (`.eh_frame`, `.debug_frame`) alone.
    Cfi,
    /// By SFrame tables that are made of the call frame information alone.
    CfiSframe,
    /// By frame pointers, by the instructions at a function's entry and exit,
    /// and by signal frames.
    Fp,
}

impl From<MethodArg> for Method {
    fn from(method: MethodArg) -> Self {
        match method {
            MethodArg::Auto => Self::Auto,
            MethodArg::Sframe => Self::Sframe,
            MethodArg::Cfi => Self::Cfi,
            MethodArg::CfiSframe => Self::CfiSframe,
            MethodArg::Fp => Self::Fp,
        }
    }
}
