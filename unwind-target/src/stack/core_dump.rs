//! A core file whose stacks are looked at.

use std::path::PathBuf;

use crate::stack::naming::Naming;
use crate::stack::options::WalkOptions;
use crate::stack::stacks::Stacks;
use crate::stack::walked::Walked;
use crate::target::Target;
use crate::target::error::TargetError;

/// A core file of x86-64 or i386, also one that is compressed by zstd; `-` is standard input. From a pipe, or
/// decompressed, it is copied to a file without a name in the directory for temporary files.
///
/// ```no_run
/// use unwind_target::Core;
///
/// let stacks = Core::new("core").program("target/debug/program").stacks()?;
/// for thread in &stacks.threads {
///     println!("thread {}, signal {:?}", thread.id, thread.signal);
///     for frame in &thread.frames {
///         println!("  {}", frame.symbol);
///     }
///     println!("  {}", thread.end);
/// }
/// # Ok::<(), unwind_target::TargetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Core {
    path: PathBuf,
    program: Option<PathBuf>,
    sysroot: Option<PathBuf>,
    options: WalkOptions,
    naming: Naming,
}

impl Core {
    /// The core file at this path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (options, naming) = (WalkOptions::new(), Naming::new());
        Self { path: path.into(), program: None, sysroot: None, options, naming }
    }

    /// The program that it is from, if that is not where it was.
    #[must_use]
    pub fn program(self, path: impl Into<PathBuf>) -> Self {
        Self { program: Some(path.into()), ..self }
    }

    /// Where the files of the machine that it comes from are, in place of `/`.
    #[must_use]
    pub fn sysroot(self, path: impl Into<PathBuf>) -> Self {
        Self { sysroot: Some(path.into()), ..self }
    }

    /// How its stacks are walked.
    #[must_use]
    pub fn options(self, options: WalkOptions) -> Self {
        Self { options, ..self }
    }

    /// How frames are named.
    #[must_use]
    pub fn naming(self, naming: Naming) -> Self {
        Self { naming, ..self }
    }

    /// The stacks of its threads, with names.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if it is no core file, is one of another machine, has no such thread, or is not one of
    /// the program.
    pub fn stacks(&self) -> Result<Stacks, TargetError> {
        self.walk()?.name(&self.naming)
    }

    /// Walks the stacks of its threads.
    ///
    /// # Errors
    ///
    /// As [`stacks`](Self::stacks).
    pub fn walk(&self) -> Result<Walked, TargetError> {
        let target = Target::of_core(&self.path, self.program.as_deref(), self.sysroot.as_deref())?;
        Walked::new(target, &self.options)
    }
}
