//! Control groups by their names.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use unwind_target::untrusted::escaped;

use crate::failure::{Failure, exit_code_of};

/// No such control group.
#[derive(Debug, thiserror::Error)]
#[error("there is no control group {}: {error}", escaped(path))]
struct NoControlGroup {
    path: PathBuf,
    #[source]
    error: io::Error,
}

/// Opens the folder of a control group: in the one hierarchy, or in that of the events.
pub(super) fn control_group(name: &Path) -> Result<File, Failure> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/perf_event", "/sys/fs/cgroup/unified"];
    let below = name.strip_prefix("/").unwrap_or(name);
    let is_group = |path: &PathBuf| fs::metadata(path.join("cgroup.procs")).is_ok();
    let paths = roots.iter().map(|root| Path::new(root).join(below));
    let found = [name.to_owned()].into_iter().chain(paths).find(is_group);
    let path = found.unwrap_or_else(|| Path::new(roots[0]).join(below));
    let none = |error: io::Error| {
        let exit_code = exit_code_of(&error);
        Failure::new(NoControlGroup { path: path.clone(), error }, exit_code)
    };
    fs::metadata(path.join("cgroup.procs")).map_err(none)?;
    File::open(&path).map_err(none)
}
