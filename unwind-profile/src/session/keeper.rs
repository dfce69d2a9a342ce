//! Keeps the files that have samples, beside the recording.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use unwind_target::Notices;
use unwind_target::files::build_id_cache::{Keeping, KeepingError, Origin};

use crate::mapped::files::RecordedFiles;
use crate::mapped::kernel::running_build_id;
use crate::mapped::recorded_file::RecordedFile;

/// How long the command stays when all else is done: a file system may not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread that keeps files: neither the programs nor the recorder wait for a disk.
#[derive(Debug)]
pub struct Keeper {
    files: Sender<Arc<RecordedFile>>,
    done: Receiver<()>,
    notices: Notices,
}

impl Keeper {
    /// Begins with the kernel's symbols. `None` if nothing can be kept, which `notices` tell.
    pub(crate) fn start(notices: Notices) -> Option<Self> {
        let mut keeping = match Keeping::begin() {
            Ok(keeping) => keeping?,
            Err(error) => {
                tell_of(&error, &notices);
                return None;
            }
        };
        let (files, received) = channel::<Arc<RecordedFile>>();
        let (is_done, done) = channel();
        let told = notices.clone();
        let keep = move || {
            if let Some(id) = running_build_id()
                && let Err(error) = keeping.keep_kernel(&id)
            {
                told.add(format!("the kernel's symbols are not kept: {error}"));
            }
            for file in received {
                keep(&mut keeping, &file, &told);
            }
            keeping.finish();
            // Nobody may wait any more.
            let _ = is_done.send(());
        };
        thread::Builder::new().name("keeper".into()).spawn(keep).ok()?;
        Some(Self { files, done, notices })
    }

    /// Hands on the files with samples that are not among these numbers.
    pub(crate) fn take(&self, files: &RecordedFiles, taken: &mut HashSet<u64>) {
        for file in files.with_samples() {
            if taken.insert(file.number) {
                // Without the thread they are not kept.
                let _ = self.files.send(Arc::clone(file));
            }
        }
    }

    /// Waits until all are kept, but not for ever.
    pub(crate) fn finish(self) {
        drop(self.files);
        if self.done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            self.notices.add("some files are not kept: a file system takes too long".into());
        }
    }
}

fn keep(keeping: &mut Keeping, file: &RecordedFile, notices: &Notices) {
    let Ok(elf) = file.elf() else { return };
    let (Some(build_id), Some(Ok(opened))) = (elf.build_id(), elf.opened()) else { return };
    let origin = Origin { name: file.name.as_bytes(), build_id: &build_id };
    if let Err(error) = keeping.keep(origin, &opened) {
        notices.add(format!(
            "{} is not kept: {error}; once it is built anew or removed its functions have no names",
            file.name
        ));
    }
}

fn tell_of(error: &KeepingError, notices: &Notices) {
    notices.add(format!(
        "files with samples are not kept: {error}; PERF_BUILDID_DIR names another folder, and \
         --no-buildid-cache does without"
    ));
}
