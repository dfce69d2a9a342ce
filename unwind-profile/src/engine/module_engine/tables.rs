//! Tables of programs that have none in memory: made here, and handed to the module.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use object::elf;
use sframe::Format;
use unwind_perf::record::{MappedId, Mapping};
use unwind_target::elf::ElfFile;
use unwind_target::files::mapped_file::ProcessFiles;
use unwind_target::rows::call_frames::CallFrames;
use unwind_target::target::maps::{Backing, FileId, MappedFile, parse};

use crate::engine::module_engine::device::Device;
use crate::engine::priority::go_first;

/// A file that a process has mapped.
#[derive(Debug)]
struct Mapped {
    process: i32,
    range: Range<u64>,
    file: MappedFile,
    build_id: Option<Vec<u8>>,
}

/// The thread that looks at files.
#[derive(Debug)]
pub(super) struct Tables {
    mapped: Sender<Mapped>,
}

/// Files that were looked at.
#[derive(Debug)]
struct Files {
    device: Arc<Device>,
    /// By device and inode number.
    seen: HashSet<(u64, u64)>,
}

/// Files of which it is known that they were looked at, at most.
const SEEN: usize = 1 << 14;

impl Tables {
    /// Hands in tables for what these processes have mapped, and starts a thread for what is mapped later. It ends
    /// with this value.
    pub(super) fn start(device: Arc<Device>, existing: &[i32]) -> Self {
        let mut files = Files { device, seen: HashSet::new() };
        existing.iter().for_each(|&process| files.look_at_process(process));
        let (mapped, received) = channel();
        thread::spawn(move || files.run(&received));
        Self { mapped }
    }

    /// Takes note that a process has mapped a file with code.
    pub(super) fn learn(&self, mapping: &Mapping<'_>) {
        let process = i32::try_from(mapping.task.pid).ok();
        let end = mapping.addr.checked_add(mapping.len);
        let (Some(process), Some(end)) = (process, end) else { return };
        // Another file may have the name by the time that it is looked at.
        let (id, build_id) = match mapping.id {
            MappedId::BuildId(id) => (None, Some(id.to_vec())),
            MappedId::Inode { major, minor, inode, .. } if inode != 0 => {
                (Some(FileId { major, minor, inode }), None)
            }
            _ => (None, None),
        };
        let file = MappedFile::new(mapping.name.to_vec(), id);
        // Without the thread such programs have incomplete stacks.
        let _ = self.mapped.send(Mapped { process, range: mapping.addr..end, file, build_id });
    }
}

impl Files {
    fn run(mut self, mapped: &Receiver<Mapped>) {
        // Until a table is there stacks end in its code.
        go_first();
        while let Ok(Mapped { process, range, file, build_id }) = mapped.recv() {
            self.look_at(&ProcessFiles::of(process), &range, (&file, build_id.as_deref()));
        }
    }

    fn look_at_process(&mut self, process: i32) {
        let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        let files = ProcessFiles::of(process);
        for mapping in parse(&maps).iter().filter(|mapping| mapping.executable) {
            if let Backing::File(file) = &mapping.backing {
                self.look_at(&files, &mapping.range, (file, None));
            }
        }
    }

    /// Hands in the table of a file that needs one.
    fn look_at(
        &mut self,
        files: &ProcessFiles,
        range: &Range<u64>,
        (mapped, build_id): (&MappedFile, Option<&[u8]>),
    ) {
        let is_it = |elf: &ElfFile| build_id.is_none_or(|id| elf.build_id().as_deref() == Some(id));
        let named = files.open(range, mapped).ok().filter(is_it);
        let Some(elf) = named.or_else(|| files.open_mapping(range).ok()) else { return };
        let Some(Ok(file)) = elf.opened() else { return };
        let Ok(metadata) = file.metadata() else { return };
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        if self.seen.insert((metadata.dev(), metadata.ino()))
            && let Some(table) = missing_table(&elf)
        {
            // What is refused for want of room has incomplete stacks.
            let _ = self.device.hand_in(&file, &table);
        }
    }
}

/// The table that the module awaits of a file: of no bytes if there is none, and `None` if it finds one in memory.
fn missing_table(file: &ElfFile) -> Option<Vec<u8>> {
    let kinds = [elf::PT_GNU_EH_FRAME, elf::PT_GNU_SFRAME];
    if file.segments.iter().any(|segment| kinds.contains(&segment.kind)) {
        return None;
    }
    Some(table_of(file).unwrap_or_default())
}

/// Makes the table of a file of 64-bit code that has call frame information.
fn table_of(file: &ElfFile) -> Option<Vec<u8>> {
    if file.machine != elf::EM_X86_64 || !file.is_64 {
        return None;
    }
    let built = CallFrames::read(file).ok()??.build(Format::V3, 0, |_| {}).ok()?;
    Some(built.bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn d14_a_file_has_the_table_that_the_module_awaits_or_is_said_to_have_none() {
        let mut file = ElfFile::from_file(File::open("/bin/sh").unwrap()).unwrap();
        assert_eq!(missing_table(&file), None);
        file.segments.retain(|segment| segment.kind != elf::PT_GNU_EH_FRAME);
        let table = missing_table(&file).unwrap();
        assert_eq!(table.first_chunk(), Some(&[0xe2, 0xde, 3]));
        file.is_64 = false;
        assert_eq!(missing_table(&file), Some(Vec::new()));
    }
}
