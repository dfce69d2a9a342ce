//! Fuzz targets, and the inputs of them that are in the tree: seeds with a name, one file each,
//! and what fuzzers found, in one archive a target.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// What is called with each input.
    pub body: fn(&[u8]),
}

/// A public function for each module that is named, which calls the module's `run`, and `TARGETS`.
#[macro_export]
macro_rules! fuzz_targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[doc = concat!("The body of `", stringify!($name), "`.")]
            ///
            /// # Panics
            ///
            /// If an answer is wrong.
            pub fn $name(data: &[u8]) {
                $name::run(data);
            }
        )*

        /// All targets of this crate.
        pub const TARGETS: &[$crate::FuzzTarget] =
            &[$($crate::FuzzTarget { name: stringify!($name), body: $name }),*];
    };
}

/// Inputs by their names.
pub type Inputs = BTreeMap<String, Vec<u8>>;

/// The folder `fuzz` of this tree.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Calls targets with all of their committed inputs, and those in `fuzz/artifacts`, in two threads.
/// Returns how many that were.
///
/// # Panics
///
/// A target does, inputs cannot be read, or there are none.
#[must_use]
pub fn replay(targets: &[FuzzTarget]) -> usize {
    let (first, second) = targets.split_at(targets.len() / 2);
    thread::scope(|scope| {
        let other = scope.spawn(|| second.iter().map(replay_one).sum::<usize>());
        first.iter().map(replay_one).sum::<usize>() + other.join().unwrap()
    })
}

/// Calls targets with inputs of no bytes and of few.
///
/// # Panics
///
/// A target does.
pub fn replay_short(targets: &[FuzzTarget]) {
    for target in targets {
        for len in 0..40 {
            for byte in [0, 1, 0x7f, 0xff] {
                (target.body)(&vec![byte; len]);
            }
        }
    }
}

/// Holds the targets of a crate against the fuzzers that call it: each has one, in the manifest,
/// too, and no other.
///
/// # Panics
///
/// One is missing.
pub fn check_fuzzers(package: &str, targets: &[FuzzTarget]) {
    let folder = folder();
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for target in targets {
        let name = target.name;
        let fuzzer = fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(fuzzer.contains(&format!("{package}::{name}(data)")), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in the manifest");
    }
    let calls = |(_, source): &(_, Vec<u8>)| String::from_utf8_lossy(source).contains(package);
    let fuzzers = read_folder(&folder.join("fuzz_targets")).unwrap();
    assert_eq!(fuzzers.into_iter().filter(calls).count(), targets.len(), "fuzzers of {package}");
    for kind in ["corpora", "seeds"] {
        for entry in fs::read_dir(folder.join(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let target = name.trim_end_matches(".tar.gz");
            let fuzzer = folder.join(format!("fuzz_targets/{target}.rs"));
            assert!(fuzzer.exists(), "{kind}/{name} is no target's");
        }
    }
}

fn replay_one(target: &FuzzTarget) -> usize {
    let (start, folder, name) = (Instant::now(), folder(), target.name);
    let mut inputs = read_archive(&folder.join(format!("corpora/{name}.tar.gz"))).unwrap();
    assert!(!inputs.is_empty(), "{name} has no corpus");
    for kind in ["seeds", "artifacts"] {
        inputs.extend(read_folder(&folder.join(kind).join(name)).unwrap());
    }
    for (input, bytes) in &inputs {
        let told = Told(name, input);
        (target.body)(bytes);
        drop(told);
    }
    println!("{name}: {} inputs in {:.1?}", inputs.len(), start.elapsed());
    inputs.len()
}

/// Says which input it was if the target panics.
struct Told<'p>(&'p str, &'p str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the input is {} of {}", self.1, self.0);
        }
    }
}

/// The files of an archive, which `fuzz/keep` has made.
///
/// # Errors
///
/// The archive is missing or damaged.
pub fn read_archive(archive: &Path) -> io::Result<Inputs> {
    let output = Command::new("gzip").arg("-dc").arg(archive).output()?;
    let files = output.status.success().then(|| files_of(&output.stdout)).flatten();
    files.ok_or_else(|| io::Error::other(format!("{} is damaged", archive.display())))
}

/// The files of a tar archive of plain files with short names.
fn files_of(mut archive: &[u8]) -> Option<Inputs> {
    const BLOCK: usize = 512;
    let mut inputs = Inputs::new();
    loop {
        let (header, rest) = archive.split_at_checked(BLOCK)?;
        if header[0] == 0 {
            return Some(inputs);
        }
        let field = |from: usize, len: usize| {
            let bytes = header[from..from + len].split(|&byte| byte == 0).next()?;
            str::from_utf8(bytes).ok()
        };
        let size = usize::from_str_radix(field(124, 12)?.trim(), 8).ok()?;
        inputs.insert(field(0, 100)?.to_owned(), rest.get(..size)?.to_vec());
        archive = rest.get(size.next_multiple_of(BLOCK)..)?;
    }
}

/// The files of a folder; none if there is no such folder.
fn read_folder(folder: &Path) -> io::Result<Inputs> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Inputs::new()),
        Err(error) => return Err(error),
    };
    let read = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
    };
    entries.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar archive of one file.
    fn archive(name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut archive = vec![0; 512];
        archive[..name.len()].copy_from_slice(name.as_bytes());
        archive[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
        archive
    }

    #[test]
    fn an_archive_that_is_cut_is_an_error_and_not_fewer_inputs() {
        let whole = archive("a", &[7; 600]);
        let inputs = files_of(&whole).unwrap();
        assert_eq!(inputs, [("a".to_owned(), vec![7; 600])].into());
        for len in [0, 100, 512, 1000, 1300] {
            assert_eq!(files_of(&whole[..len]), None, "{len}");
        }
    }
}
