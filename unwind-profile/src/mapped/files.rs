//! The files whose code a recording has samples of.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use unwind_perf::record::{MappedId, Mapping};
use unwind_target::elf::ElfFile;
use unwind_target::files::mapped_file::Holder;
use unwind_target::target::maps::FileId as FileNumber;
use unwind_target::target::processes::Processes;
use unwind_target::{DebugFiles, Notices, Untrusted};

use crate::mapped::origin::{Moment, Origin};
use crate::mapped::text_proof::TextProof;

use crate::mapped::recorded_file::{FileId, RecordedFile, VDSO_32};
use crate::recording::guest_names::GuestNames;
use crate::recording::registered_code::RegisteredCode;

/// The files that several recordings have. Those with a build id are in it once, so that what is
/// read of one is read once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFiles(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    by_build_id: HashMap<(Untrusted, FileId), Arc<RecordedFile>>,
    /// How many files all recordings have.
    count: u64,
}

impl SharedFiles {
    /// The file of this name and identity, which is made with its number if it is a new one, or if it `is_lost`.
    fn get(
        &self,
        key: &(Untrusted, FileId),
        is_lost: impl FnOnce(&RecordedFile) -> bool,
        new: impl FnOnce(u64) -> RecordedFile,
    ) -> Arc<RecordedFile> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = shared.by_build_id.get(key).filter(|file| !is_lost(file)) {
            return Arc::clone(file);
        }
        shared.count = shared.count.saturating_add(1);
        let file = Arc::new(new(shared.count));
        if matches!(key.1, FileId::BuildId(_)) {
            shared.by_build_id.insert(key.clone(), Arc::clone(&file));
        }
        file
    }
}

/// All files of a recording, each once.
#[derive(Debug, Default)]
pub struct RecordedFiles {
    shared: SharedFiles,
    files: HashMap<(Untrusted, FileId), Arc<RecordedFile>>,
    /// What the recorder found in the files when it was done.
    build_ids: HashMap<Box<[u8]>, Box<[u8]>>,
    debug_files: Arc<DebugFiles>,
    /// What is known of the processes that map them.
    processes: Processes,
    /// When they were recorded.
    moment: Option<Moment>,
    /// By what memory is taken for code of theirs.
    proof: TextProof,
    /// What is known of those that a guest has mapped.
    guest: GuestNames,
    /// What compilers have registered in these processes, of a recording.
    registered: Arc<RegisteredCode>,
    /// What there is to tell of them.
    notices: Notices,
}

impl RecordedFiles {
    /// The files of a recording that knows these build ids, by the names of files.
    #[must_use]
    pub fn new(build_ids: HashMap<Box<[u8]>, Box<[u8]>>) -> Self {
        Self { build_ids, ..Self::default() }
    }

    /// Has the files that other recordings have, too.
    pub(crate) fn sharing(self, shared: SharedFiles) -> Self {
        Self { shared, ..self }
    }

    /// The files of processes that ran at a moment, if that is known.
    fn recorded_at(self, moment: Option<Moment>) -> Self {
        let processes = moment.map_or(Processes::Unknown, |moment| moment.processes());
        Self { processes, moment, ..self }
    }

    /// The files of a recording of this origin. Who else recorded it than `unwind record` has not
    /// looked at memory that may have their code.
    #[must_use]
    pub fn of_origin(self, origin: &Origin) -> Self {
        let proof = if origin.is_own { TextProof::None } else { TextProof::Place };
        let (guest, registered) = (origin.guest.clone(), Arc::clone(&origin.registered));
        Self { proof, guest, registered, ..self.recorded_at(origin.moment) }
    }

    /// By what memory is taken for code of theirs.
    pub(crate) const fn proof(&self) -> TextProof {
        self.proof
    }

    /// What is known of the processes that map them.
    pub(crate) const fn processes(&self) -> Processes {
        self.processes
    }

    /// What compilers have registered in the processes that map them, as a recording says.
    pub(crate) fn registered(&self) -> &RegisteredCode {
        &self.registered
    }

    /// The files of processes that run while these are read.
    #[must_use]
    pub fn of_running() -> Self {
        Self { processes: Processes::Running, proof: TextProof::Bytes, ..Self::default() }
    }

    /// Has these tell what there is to tell of them.
    #[must_use]
    pub fn with_notices(self, notices: &Notices) -> Self {
        Self { notices: notices.clone(), ..self }
    }

    /// What there is to tell of them.
    pub(crate) const fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Looks for what was stripped off files there.
    #[must_use]
    pub fn with_debug_files(self, debug_files: DebugFiles) -> Self {
        Self { debug_files: Arc::new(debug_files), ..self }
    }

    /// Those that have samples and are files.
    pub(crate) fn with_samples(&self) -> impl Iterator<Item = &Arc<RecordedFile>> {
        self.files.values().filter(|file| {
            file.has_samples() && file.name.as_bytes().starts_with(b"/") && !file.is_jit()
        })
    }

    /// The build ids of those that have samples, by their names. Files of one name, which have been
    /// there one after the other or in several places, have none.
    pub(crate) fn found_build_ids(&self) -> BTreeMap<&[u8], Vec<u8>> {
        let mut found: BTreeMap<&[u8], Option<Vec<u8>>> = BTreeMap::new();
        for file in self.with_samples() {
            let id = file.elf().ok().and_then(ElfFile::build_id);
            let known = found.entry(file.name.as_bytes()).or_insert_with(|| id.clone());
            if *known != id {
                *known = None;
            }
        }
        found.into_iter().filter_map(|(name, id)| Some((name, id?))).collect()
    }

    /// The file of a mapping of a guest that was recorded at a time.
    pub(crate) fn guest_file(&mut self, mapping: &Mapping<'_>, time: u64) -> Arc<RecordedFile> {
        let build_id = match mapping.id {
            MappedId::BuildId(id) => Some(id.into()),
            _ => None,
        };
        let key = (Untrusted::from(mapping.name), build_id);
        let Some(names) = self.guest.get(&key) else { return self.file(mapping, time) };
        let (name, build_id) = key;
        let id = build_id.map_or(FileId::Unknown, FileId::BuildId);
        let new =
            || Arc::new(RecordedFile::of_guest((name.clone(), id.clone()), Arc::clone(names)));
        Arc::clone(self.files.entry((name.clone(), id.clone())).or_insert_with(new))
    }

    /// The file of a mapping that was recorded at a time.
    pub(crate) fn file(&mut self, mapping: &Mapping<'_>, time: u64) -> Arc<RecordedFile> {
        let id = match (mapping.id, self.build_ids.get(mapping.name)) {
            (MappedId::BuildId(id), _) => FileId::BuildId(id.into()),
            (_, Some(id)) => FileId::BuildId(id.clone()),
            (MappedId::Inode { major, minor, inode, generation }, None) if inode != 0 => {
                FileId::Number(FileNumber { major, minor, inode }, generation)
            }
            _ => FileId::Unknown,
        };
        let name = if is_vdso_32(mapping) { VDSO_32 } else { mapping.name };
        let key = (Untrusted::from(name), id);
        let new = |number| {
            let debug_files = Arc::clone(&self.debug_files);
            let recorded = self.moment.and_then(|moment| moment.latest(time));
            RecordedFile::new(key.clone(), number, debug_files, recorded)
        };
        let is_running = self.processes == Processes::Running;
        // A new process may lead to what those before it no longer did.
        let is_lost = |file: &RecordedFile| is_running && file.is_lost();
        let file = match self.files.get(&key).filter(|file| !is_lost(file)) {
            Some(file) => Arc::clone(file),
            None => {
                let file = self.shared.get(&key, is_lost, new);
                let lost = self.files.insert(key, Arc::clone(&file));
                if lost.is_some_and(|lost| lost.has_samples()) {
                    file.note_sample();
                }
                file
            }
        };
        if is_running {
            holders_of(mapping).for_each(|holder| file.mapped_by(holder));
        }
        file
    }
}

fn is_vdso_32(mapping: &Mapping<'_>) -> bool {
    mapping.name == b"[vdso]" && mapping.addr.saturating_add(mapping.len) <= 1 << 32
}

/// The process that has a mapping: by the thread that has made it or is known to live, and by its first one. Either may
/// have ended.
fn holders_of(mapping: &Mapping<'_>) -> impl Iterator<Item = Holder<'static>> {
    let range = mapping.addr..mapping.addr.saturating_add(mapping.len);
    let threads = [mapping.task.tid, mapping.task.pid].map(i32::try_from).into_iter().flatten();
    let threads = threads.filter(|&thread| thread > 0);
    threads.map(move |thread| Holder { thread, root: None, range: range.clone() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    use unwind_perf::record::Task;
    use unwind_target::target::maps::{self, Backing};

    use super::*;

    /// This program, as if a process had mapped it from a name that leads to nothing here.
    fn mapping_of(process: u32) -> Mapping<'static> {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let program = std::env::current_exe().unwrap();
        let is_code = |mapping: &&maps::Mapping| {
            let is_program =
                matches!(&mapping.backing, Backing::File(file) if file.path == program);
            is_program && mapping.executable
        };
        let range = maps::parse(&text).iter().find(is_code).unwrap().range.clone();
        let task = Task { pid: process, tid: process };
        let mut mapping = Mapping::of_code(task, range, b"/only/in/a/container");
        let file = std::fs::metadata(program).unwrap();
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        mapping.id = MappedId::Inode { major, minor, inode: file.ino(), generation: 0 };
        mapping
    }

    fn ended() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn k1_any_process_that_has_mapped_a_file_leads_to_it() {
        let mut files = RecordedFiles::of_running();
        let (first, own, last) = (ended(), std::process::id(), ended());
        for process in [first, own, last] {
            files.file(&mapping_of(process), 1);
        }
        assert!(files.file(&mapping_of(first), 1).elf().is_ok());
    }

    #[test]
    fn k1_a_file_that_could_not_be_read_is_looked_for_by_the_next_process() {
        let mut files = RecordedFiles::of_running();
        let lost = files.file(&mapping_of(ended()), 1);
        lost.note_sample();
        assert!(lost.elf().is_err() && lost.is_lost());
        let found = files.file(&mapping_of(std::process::id()), 2);
        assert!(found.elf().is_ok() && found.has_samples());
        assert!(Arc::ptr_eq(&found, &files.file(&mapping_of(ended()), 3)));
        // What was recorded before is not looked for again.
        let mut files = RecordedFiles::default();
        assert!(files.file(&mapping_of(std::process::id()), 1).elf().is_err());
        let again = files.file(&mapping_of(std::process::id()), 1);
        assert!(again.elf().is_err());
    }
}
