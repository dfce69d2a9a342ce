//! Why the Linux module takes no samples.

use std::io;

/// Why the module takes no samples.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// There is no device.
    #[error(
        "the Linux module of unwind is not loaded: there is no /dev/unwind; once it is installed, as \
         docs/linux-module.md says, `modprobe unwind` loads it"
    )]
    NotLoaded,
    /// The device is another program's, or this user may not open it.
    #[error("/dev/unwind cannot be opened: {0}{advice}", advice = open_advice(.0))]
    Open(#[source] io::Error),
    /// What the module does not record.
    #[error("the Linux module does not record {0}")]
    Unsupported(&'static str),
    /// The module that is loaded is of another version than this program.
    #[error(
        "the Linux module of unwind that is loaded is of another version: install the one of this version, as \
         docs/linux-module.md says, then `rmmod unwind` and `modprobe unwind`"
    )]
    OtherVersion,
    /// The module takes no samples of the event, or not as often.
    #[error(
        "the Linux module takes no such samples: {0}; it takes at most 10,000 a second, of events that `perf list` \
         names and this machine has"
    )]
    Setup(#[source] io::Error),
    /// It takes none of a thread or a CPU.
    #[error("the Linux module cannot sample a thread or a CPU: {0}")]
    Add(#[source] io::Error),
}

fn open_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ResourceBusy => "; one program at a time has it",
        io::ErrorKind::PermissionDenied => {
            "; it needs root, or CAP_PERFMON and the rights of the file"
        }
        _ => "",
    }
}
