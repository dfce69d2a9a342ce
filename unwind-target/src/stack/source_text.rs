//! The text of the lines that frames are at.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::files::{regular_file, source_file};
use crate::stack::stacks::{Stacks, ThreadStack};
use crate::untrusted::Untrusted;

/// How many files are read.
const FILES: usize = 1024;

/// How many bytes of a line are kept.
const LINE_LIMIT: usize = 200;

/// Where source files are. They are read as they are now: nothing proves that a program was made of them.
///
/// A target says which files these are. Those are read whose names end as those of sources do (`.c`, `.rs`, `.py`).
///
/// ```no_run
/// use unwind_target::{Process, SourceFiles};
///
/// let mut stacks = Process::new(4711).stacks()?;
/// stacks.read_source(&SourceFiles::of_process(4711));
/// for frame in stacks.threads.iter().flat_map(|thread| &thread.frames) {
///     if let Some(text) = &frame.symbol.source.text {
///         println!("{}: {text}", frame.symbol);
///     }
/// }
/// # Ok::<(), unwind_target::TargetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SourceFiles {
    root: PathBuf,
    /// What relative paths are below, if that is known.
    folder: Option<PathBuf>,
}

impl SourceFiles {
    /// Those of a process, as it sees them: below its root, relative ones below its current folder.
    #[must_use]
    pub fn of_process(id: i32) -> Self {
        let folder = std::fs::read_link(format!("/proc/{id}/cwd")).ok();
        Self { root: format!("/proc/{id}/root").into(), folder }
    }

    /// Those below a folder that holds the files of the machine, `/` for this one. Relative ones are not found.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), folder: None }
    }

    fn open(&self, name: &[u8]) -> io::Result<File> {
        let name = Path::new(OsStr::from_bytes(name.strip_prefix(b"file://").unwrap_or(name)));
        match (&self.folder, name.is_absolute()) {
            _ if !source_file::is_source(name) => Err(io::ErrorKind::NotFound.into()),
            (_, true) => regular_file::open_in(&self.root, name),
            (Some(folder), false) => regular_file::open_in(&self.root, &folder.join(name)),
            (None, false) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Stacks {
    /// Reads the lines of the source that frames, functions inlined in them and calls of interpreters are at, without
    /// the blanks around them: `text` of each. At most 1,024 files are read, and the first 8 MiB of each, if its
    /// name ends as those of sources do; of a line the first 200 bytes are kept. What is not there has no text.
    pub fn read_source(&mut self, files: &SourceFiles) {
        let mut wanted = BTreeMap::<Untrusted, BTreeSet<u32>>::new();
        let threads = &mut self.threads;
        threads.iter_mut().for_each(|thread| {
            thread.each_line(|file, line, _| {
                wanted.entry(file.clone()).or_default().insert(line);
            });
        });
        let texts = wanted.into_iter().take(FILES).filter_map(|(name, wanted)| {
            let file = files.open(name.as_bytes()).ok()?;
            let lines = source_file::lines(file, &wanted).ok()?.into_iter();
            // Cut now, since a line may be as long as its file.
            let texts: BTreeMap<_, _> = lines.map(|(line, text)| (line, shown(&text))).collect();
            Some((name, texts))
        });
        let texts: BTreeMap<_, _> = texts.collect();
        threads.iter_mut().for_each(|thread| {
            thread.each_line(|file, line, text| {
                *text = texts.get(file).and_then(|texts| texts.get(&line)).cloned();
            });
        });
    }
}

/// What is kept of a line.
fn shown(line: &[u8]) -> Untrusted {
    let line = line.trim_ascii_start();
    Untrusted::from(line.get(..LINE_LIMIT).unwrap_or(line))
}

impl ThreadStack {
    /// Each file and line of the source, and the text of that.
    fn each_line(&mut self, mut use_line: impl FnMut(&Untrusted, u32, &mut Option<Untrusted>)) {
        let mut look = |file: Option<&Untrusted>, line, text: &mut Option<Untrusted>| {
            if let (Some(file), Some(line)) = (file, line) {
                use_line(file, line, text);
            }
        };
        for call in self.interpreted.iter_mut().flat_map(|found| &mut found.unplaced) {
            look(call.file.as_ref(), call.line, &mut call.text);
        }
        for frame in &mut self.frames {
            for call in &mut frame.interpreted {
                look(call.file.as_ref(), call.line, &mut call.text);
            }
            let source = &mut frame.symbol.source;
            for inlined in &mut source.inlined {
                look(inlined.file.as_ref(), inlined.line, &mut inlined.text);
            }
            look(source.file.as_ref(), source.line, &mut source.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere_but_below_the_root_and_only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/a.py"), b"of the root\n").unwrap();
        std::os::unix::fs::symlink("/etc/a.py", folder.path().join("link.py")).unwrap();
        let files = SourceFiles::below(folder.path());
        for name in [&b"/link.py"[..], b"/../../etc/a.py", b"file:///link.py"] {
            let text = io::read_to_string(files.open(name).unwrap()).unwrap();
            assert_eq!(text, "of the root\n");
        }
        for name in [&b"/etc"[..], b"/none.py", b"etc/a.py", b"<string>", b""] {
            assert!(files.open(name).is_err());
        }
    }
}
