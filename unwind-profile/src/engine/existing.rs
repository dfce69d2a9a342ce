//! What there is to say of processes that were there before they were sampled.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use unwind_perf::record::{
    AttrFlags, Comm, Encode, Endian, EventFormat, MappedId, Mapping, Misc, SampleId, Task,
};
use unwind_target::files::mapped_file::ProcessFiles;
use unwind_target::target::maps::{self, Backing, FileId, MappedFile};
use unwind_target::target::process_modules::remapped_text;
use unwind_target::untrusted::plain;

/// The longest build id that a record has room for.
const MAX_ID: usize = 20;

/// Writes records of processes to the end of `out`, as the kernel would have.
pub(crate) struct Existing<'o> {
    pub(crate) format: EventFormat,
    pub(crate) out: &'o mut Vec<u8>,
    /// The build ids of files that were asked for theirs, or that they have none.
    pub(crate) build_ids: HashMap<FileId, Option<Vec<u8>>>,
}

impl Existing<'_> {
    /// Says what the threads of a process are called, and where it has code. What is gone
    /// by now is left out.
    pub(crate) fn process(&mut self, process: i32) {
        let pid = u32::try_from(process).unwrap_or_default();
        let threads = threads_of(process);
        for &thread in &threads {
            let Ok(name) = fs::read(format!("/proc/{process}/task/{thread}/comm")) else {
                continue;
            };
            let task = Task { pid, tid: u32::try_from(thread).unwrap_or_default() };
            let name = name.trim_ascii_end();
            self.put(&Comm { task, name, exec: false, id: before(task) });
        }
        // A thread that has ended has no memory, such as the first one of a process that lives on.
        let maps = |thread: &i32| fs::read(format!("/proc/{thread}/maps")).unwrap_or_default();
        let text_of =
            |&thread: &i32| Some((thread, maps(&thread))).filter(|(_, text)| !text.is_empty());
        let Some((thread, text)) = threads.iter().find_map(text_of) else { return };
        let task = Task { pid, tid: u32::try_from(thread).unwrap_or(pid) };
        let mappings = maps::parse(&text);
        let files = ProcessFiles::of(thread);
        // Of mappings without code only those of files have tables.
        let tells_data = self.format.flags.contains(AttrFlags::MMAP_DATA);
        let is_told = |mapped: &&maps::Mapping| {
            mapped.executable || tells_data && matches!(mapped.backing, Backing::File(_))
        };
        for mapped in mappings.iter().filter(is_told) {
            let name: &[u8] = match &mapped.backing {
                Backing::File(file) => file.path.as_os_str().as_bytes(),
                Backing::Vdso => b"[vdso]",
                Backing::Anonymous => b"//anon",
                Backing::Named(name) => name,
            };
            let mut mapping = Mapping::of_code(task, mapped.range.clone(), name);
            (mapping.offset, mapping.sample_id) = (mapped.offset, before(task));
            mapping.executable = mapped.executable;
            let build_id;
            if let Backing::File(file) = &mapped.backing {
                build_id = self.build_id(&files, &mapped.range, file);
                mapping.id = id_of(file, build_id.as_deref());
            }
            self.put(&mapping);
        }
        // It takes the place of the memory that it is in.
        for text in remapped_text(thread, &mappings) {
            let name = text.file.path.as_os_str().as_bytes();
            let mut mapping = Mapping::of_code(task, text.range.clone(), name);
            (mapping.offset, mapping.sample_id) = (text.offset, before(task));
            let build_id = self.build_id(&files, &text.range, &text.file);
            mapping.id = id_of(&text.file, build_id.as_deref());
            self.put(&mapping);
        }
    }

    /// Says where the kernel and its modules are, if that may be known.
    pub(crate) fn kernel(&mut self) {
        if let Some(Range { start, end }) = kernel_code() {
            self.put_of_kernel(start..end, start, b"[kernel.kallsyms]_text");
        }
        for (name, range) in modules_of(&fs::read("/proc/modules").unwrap_or_default()) {
            self.put_of_kernel(range, 0, format!("[{name}]").as_bytes());
        }
    }

    fn put_of_kernel(&mut self, range: Range<u64>, offset: u64, name: &[u8]) {
        let task = Task { pid: u32::MAX, tid: 0 };
        let mut mapping = Mapping::of_code(task, range, name);
        (mapping.offset, mapping.sample_id) = (offset, before(task));
        let at = self.out.len();
        self.put(&mapping);
        // A mapping of the kernel says so in its header.
        if let Some(misc) =
            self.out.get_mut(at.saturating_add(4)..).and_then(<[u8]>::first_chunk_mut)
        {
            *misc = Misc::KERNEL.0.to_le_bytes();
        }
    }

    /// The build id of a file that a process maps.
    fn build_id(
        &mut self,
        files: &ProcessFiles,
        range: &Range<u64>,
        file: &MappedFile,
    ) -> Option<Vec<u8>> {
        let found = || files.open(range, file).ok()?.build_id();
        self.build_ids.entry(file.id?).or_insert_with(found).clone()
    }

    fn put(&mut self, record: &impl Encode) {
        // A name that is too long for a record is left out.
        let _ = record.encode(self.format, Endian::Little, self.out);
    }
}

/// What tells a file from others: its build id, as the kernel tells it of what is mapped later.
fn id_of<'a>(file: &MappedFile, build_id: Option<&'a [u8]>) -> MappedId<'a> {
    let number = |id: FileId| {
        let (major, minor, inode) = (id.major, id.minor, id.inode);
        MappedId::Inode { major, minor, inode, generation: 0 }
    };
    match build_id {
        Some(id) if (1..=MAX_ID).contains(&id.len()) => MappedId::BuildId(id),
        _ => file.id.map_or(MappedId::Unknown, number),
    }
}

/// Where the code of the kernel is, if that may be known.
///
/// Its end is far back in the list of symbols, of which each is made when it is read. The list of memory has
/// it, too, as an address of the hardware.
fn kernel_code() -> Option<Range<u64>> {
    let lines = BufReader::new(File::open("/proc/kallsyms").ok()?).split(b'\n');
    let mut symbols = lines.map_while(Result::ok).filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let address = maps::hex(words.next()?)?;
        words.nth(1).map(|name| (address, name.to_owned()))
    });
    let (start, _) = symbols.find(|(_, name)| name == b"_text")?;
    if start == 0 {
        return None;
    }
    let memory = fs::read("/proc/iomem").unwrap_or_default();
    let length = memory.split(|&byte| byte == b'\n').find_map(|line| {
        let (first, last) = plain(line.strip_suffix(b" : Kernel code")?)?.trim().split_once('-')?;
        let (first, last) = (maps::hex(first.as_bytes())?, maps::hex(last.as_bytes())?);
        // Who may not know has zeros.
        last.checked_sub(first).filter(|&length| length != 0)?.checked_add(1)
    });
    let end = match length {
        Some(length) => start.checked_add(length),
        None => symbols.find(|(_, name)| name == b"_etext").map(|(end, _)| end),
    };
    Some(start..end.filter(|&end| end > start).unwrap_or(u64::MAX))
}

/// The modules in `/proc/modules`, whose lines are such as `xfs 1552384 1 - Live 0xffffffffc0a00000 (E)`: those with an
/// address, by that. Since Linux 6.4 it is that of the code, and the size is of the data, too.
fn modules_of(list: &[u8]) -> Vec<(&str, Range<u64>)> {
    let modules = list.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = plain(line)?.split(' ');
        let (name, size) = (words.next()?, words.next()?.parse().ok()?);
        let start = maps::hex(words.nth(3)?.strip_prefix("0x")?.as_bytes())?;
        // Who may not know has zeros.
        let end = start.checked_add(size).filter(|_| start != 0)?;
        Some((name, start..end))
    });
    let mut modules: Vec<_> = modules.collect();
    modules.sort_by_key(|(_, range)| range.start);
    let starts: Vec<u64> = modules.iter().map(|(_, range)| range.start).collect();
    for ((_, range), &next) in modules.iter_mut().zip(starts.iter().skip(1)) {
        range.end = range.end.min(next);
    }
    modules.retain(|(_, range)| !range.is_empty());
    modules
}

/// The fields at the end of a record from before the first sample.
fn before(task: Task) -> SampleId {
    SampleId {
        task: Some(task),
        time: Some(0),
        cpu: Some(0),
        identifier: Some(0),
        ..SampleId::default()
    }
}

/// The threads of a process.
pub(crate) fn threads_of(process: i32) -> Vec<i32> {
    numbers_in(&format!("/proc/{process}/task"))
}

/// All processes.
pub(crate) fn all_processes() -> Vec<i32> {
    numbers_in("/proc")
}

fn numbers_in(folder: &str) -> Vec<i32> {
    let names = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    names.filter_map(|name| plain(name.file_name().as_bytes())?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn d14_a_process_whose_first_thread_has_ended_has_its_mappings() {
        let program = "import ctypes, threading, time\n\
                       threading.Thread(target=lambda: time.sleep(60)).start()\n\
                       ctypes.CDLL(None).pthread_exit(None)";
        let Ok(mut child) = Command::new("python3").args(["-c", program]).spawn() else {
            eprintln!("skipped: there is no python3");
            return;
        };
        let process = i32::try_from(child.id()).unwrap();
        let has_ended = || {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            stat.contains(") Z")
        };
        while !has_ended() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (mut bytes, format) = (Vec::new(), EventFormat::default());
        Existing { format, out: &mut bytes, build_ids: HashMap::new() }.process(process);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = &bytes[..];
        let mut names = Vec::new();
        while !rest.is_empty() {
            let record = unwind_perf::record::Record::parse(rest, Endian::Little).unwrap();
            if let Ok(mapping) = Mapping::decode(&record, format) {
                // The thread that lives leads to the files.
                assert_eq!(mapping.task.pid, child.id());
                assert_ne!(mapping.task.tid, child.id());
                names.push(String::from_utf8_lossy(mapping.name).into_owned());
            }
            rest = &rest[record.bytes().len()..];
        }
        assert!(names.iter().any(|name| name.contains("libc")), "{names:?}");
    }

    #[test]
    fn d14_modules_of_the_kernel_are_where_their_list_says() {
        let list = b"xfs 8192 1 - Live 0xffffffffc0a00000\n\
            nf_tables 4096 3 nft_ct,nft_nat, Live 0xffffffffc0500000 (E)\n\
            libcrc32c 65536 2 xfs,nf_tables, Live 0xffffffffc09ff000\n\
            hidden 4096 0 - Live 0x0000000000000000\n\
            huge 18446744073709551615 0 - Live 0xffffffffc0b00000\n\
            no module\n";
        let modules = [
            ("nf_tables", 0xffff_ffff_c050_0000..0xffff_ffff_c050_1000),
            ("libcrc32c", 0xffff_ffff_c09f_f000..0xffff_ffff_c0a0_0000),
            ("xfs", 0xffff_ffff_c0a0_0000..0xffff_ffff_c0a0_2000),
        ];
        assert_eq!(modules_of(list), modules);
        assert!(modules_of(b"").is_empty());
    }
}
