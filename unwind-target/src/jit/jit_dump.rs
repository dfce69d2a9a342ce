//! What a compiler tells of the code that it makes while a program runs: `jit-PID.dump`, which
//! the program maps so that recordings tell where it is. Each record has a time and, of some
//! compilers, call frame information.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::iter;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use unwind_core::WordSize;

use crate::jit::compiler_file;
use crate::jit::jit_code::{Instructions, JitCode, JitFrames};
use crate::jit::jit_map::JitMap;
use crate::jit::jit_maps::MAX_PARENTS;
use crate::notices::Notices;
use crate::target::processes::Processes;
use crate::untrusted::plain;

/// The longest name, in bytes.
const MAX_NAME: usize = 4096;

/// The most call frame information of one function, in bytes.
const MAX_FRAMES: usize = 64 << 10;

/// The same of all.
const ALL_FRAMES: usize = 32 << 20;

/// How many records of a file are read at most.
const MAX_RECORDS: u32 = 1 << 18;

/// How long to wait for more after a file's end was seen, in nanoseconds of the recording.
const PAUSE: u64 = 10_000_000;

/// The number that a file of this machine's byte order begins with.
const MAGIC: u32 = 0x4a69_5444;

/// The flag of a file whose times are those of another clock.
const OTHER_CLOCK: u64 = 1;

/// Bytes of a file's header, of that of a record, and of a record about code before its name.
const HEADER: usize = 40;
const RECORD: u64 = 16;
const LOAD: usize = 56;

/// The file of a process.
#[derive(Debug)]
pub struct JitDump {
    /// `None` if it cannot be read, or no longer is.
    file: Option<Arc<File>>,
    /// Where the next record is; 0 before the header is read.
    at: u64,
    has_times: bool,
    machine: u32,
    records: u32,
    /// When its end was seen.
    ended: Option<u64>,
    /// Call frame information of the function that is told next.
    frames: Option<Box<[u8]>>,
    /// All functions by their starts, to tell where moved code comes from.
    codes: HashMap<u64, JitCode>,
    /// How many bytes of call frame information there may be more.
    room: usize,
}

impl JitDump {
    /// What a mapped file of a process tells, if that is its dump by its name; nothing is in it if it
    /// may not be used. In a container it is called by the id that the process has there.
    #[must_use]
    pub fn open(
        name: &[u8],
        process: u32,
        processes: Processes,
        notices: &Notices,
    ) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(name));
        let last = name.rsplit(|&byte| byte == b'/').next()?;
        let number = plain(last.strip_prefix(b"jit-")?.strip_suffix(b".dump")?)?.parse().ok()?;
        let below_root =
            |process| compiler_file::open_below_root(path, process, processes, notices);
        // One that came from another one without an exec has mapped the dump of that.
        let parent = |&process: &u32| compiler_file::forked_from(process, processes);
        let makers = iter::successors(Some(process), parent).take(1 + MAX_PARENTS);
        makers.into_iter().find_map(|maker| {
            if number == maker {
                let here = compiler_file::open(path, maker, processes, notices);
                return Some(Self::new(here.or_else(|| below_root(maker))));
            }
            // Here that may be the dump of another process.
            let inner = compiler_file::inner_id(maker, processes);
            (inner == Some(number)).then(|| Self::new(below_root(maker)))
        })
    }

    fn new(file: Option<File>) -> Self {
        Self {
            file: file.map(Arc::new),
            at: 0,
            has_times: true,
            machine: 0,
            records: 0,
            ended: None,
            frames: None,
            codes: HashMap::new(),
            room: ALL_FRAMES,
        }
    }

    /// Reads what was told up to a time of the recording. Hands out each function.
    pub fn read_to(&mut self, time: u64, mut take: impl FnMut(JitCode)) {
        if self.ended.is_some_and(|ended| time.wrapping_sub(ended) < PAUSE) {
            return;
        }
        self.ended = None;
        while let Some(file) = self.file.take() {
            match self.next(&file, time) {
                Next::Code(code) => take(code),
                Next::Other => {}
                Next::Later => {
                    self.file = Some(file);
                    return;
                }
                Next::End => {
                    self.file = Some(file);
                    self.ended = Some(time);
                    return;
                }
                // It says nothing that can be understood any more.
                Next::Damaged => return,
            }
            self.records = self.records.saturating_add(1);
            self.file = Some(file).filter(|_| self.records < MAX_RECORDS);
        }
    }

    fn next(&mut self, file: &Arc<File>, time: u64) -> Next {
        if self.at == 0 {
            return self.read_header(file);
        }
        let mut buf = [0; LOAD + MAX_NAME];
        let len = read_at(file, self.at, &mut buf);
        let record = buf.get(..len).unwrap_or_default();
        let fields = Fields(record);
        let (Some(kind), Some(size), Some(told)) = (fields.u32(0), fields.u32(4), fields.u64(8))
        else {
            return Next::End;
        };
        let size = u64::from(size);
        let Some(end) = self.at.checked_add(size).filter(|_| size >= RECORD) else {
            return Next::Damaged;
        };
        // Its end may not be written yet.
        if file.metadata().map_or(0, |metadata| metadata.len()) < end {
            return Next::End;
        }
        if self.has_times && told > time {
            return Next::Later;
        }
        let at = std::mem::replace(&mut self.at, end);
        let len = usize::try_from(size).unwrap_or(usize::MAX).min(record.len());
        let fields = Fields(record.get(..len).unwrap_or_default());
        match kind {
            0 => self.load(file, at, fields),
            1 => self.moved(fields),
            4 => {
                self.frames = frames(file, at, end, fields).filter(|frames| {
                    let rest = self.room.checked_sub(frames.len());
                    self.room = rest.unwrap_or(self.room);
                    rest.is_some()
                });
                Next::Other
            }
            _ => Next::Other,
        }
    }

    fn read_header(&mut self, file: &File) -> Next {
        let mut header = [0; HEADER];
        if read_at(file, 0, &mut header) < HEADER {
            return Next::End;
        }
        let fields = Fields(&header);
        let (Some(MAGIC), Some(1), Some(size)) = (fields.u32(0), fields.u32(4), fields.u32(8))
        else {
            return Next::Damaged;
        };
        self.machine = fields.u32(12).unwrap_or(0);
        self.has_times = fields.u64(32).is_none_or(|flags| flags & OTHER_CLOCK == 0);
        match usize::try_from(size) {
            Ok(size) if size >= HEADER => {
                self.at = size.try_into().unwrap_or(u64::MAX);
                Next::Other
            }
            _ => Next::Damaged,
        }
    }

    /// A function: its place in memory, its length and its name.
    fn load(&mut self, file: &Arc<File>, at: u64, fields: Fields<'_>) -> Next {
        let frames = self.frames.take();
        let (Some(start), Some(len)) = (fields.u64(32), fields.u64(40)) else {
            return Next::Other;
        };
        let name = fields.0.get(LOAD..).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let frames =
            frames.and_then(|frames| JitFrames::new(frames, start.checked_add(len)?, self.machine));
        let instructions = || {
            let before = u64::try_from(LOAD.checked_add(name.len())?.checked_add(1)?).ok()?;
            let is_whole = before.checked_add(len)? <= fields.u32(4)?.into();
            Some(Instructions { file: Arc::clone(file), at: at.checked_add(before)? })
                .filter(|_| is_whole)
        };
        match JitCode::new(start, len, name, frames, instructions()) {
            Some(code) => self.tell(code),
            None => Next::Other,
        }
    }

    /// A function that was told is elsewhere now.
    fn moved(&mut self, fields: Fields<'_>) -> Next {
        let (Some(from), Some(to)) = (fields.u64(32), fields.u64(40)) else { return Next::Other };
        let old = self.codes.remove(&from);
        match old.and_then(|old| old.moved_to(to)) {
            Some(code) => self.tell(code),
            None => Next::Other,
        }
    }

    fn tell(&mut self, code: JitCode) -> Next {
        self.codes.insert(code.start, code.clone());
        Next::Code(code)
    }
}

/// How many functions a map and a dump have, whose rows are looked for.
pub fn jit_functions(map: &[u8], dump: &[u8]) -> usize {
    let mut functions = JitMap::read(map).len();
    let file = memfd_create("dump", MemfdFlags::CLOEXEC).map(File::from);
    let file = file.ok().filter(|file| file.write_all_at(dump, 0).is_ok());
    JitDump::new(file).read_to(u64::MAX, |code| {
        functions = functions.saturating_add(1);
        for addr in [code.start, code.end.wrapping_sub(1)] {
            let _ = code.row(addr, WordSize::Eight);
            let _ = code.register_rules(addr, WordSize::Eight);
        }
    });
    functions
}

/// What comes next in a file.
enum Next {
    Code(JitCode),
    /// What tells of no function.
    Other,
    /// A record of a later time.
    Later,
    End,
    Damaged,
}

/// The call frame information of the function that is told next: `.eh_frame`, and its search
/// table, which is not needed.
fn frames(file: &File, at: u64, end: u64, fields: Fields<'_>) -> Option<Box<[u8]>> {
    let (all, table) = (fields.u64(16)?, fields.u64(24)?);
    let len = usize::try_from(all.checked_sub(table)?).ok()?;
    let start = at.checked_add(40)?;
    let is_inside = start.checked_add(all).is_some_and(|last| last <= end);
    if len == 0 || len > MAX_FRAMES || !is_inside {
        return None;
    }
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes.into())
}

/// Reads as much as there is. Returns how much that was.
fn read_at(file: &File, at: u64, buf: &mut [u8]) -> usize {
    let mut filled = 0_usize;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = at.saturating_add(filled.try_into().unwrap_or(u64::MAX));
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(read) => filled = filled.saturating_add(read),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    filled
}

/// The fields of a record, by their places.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().map(|&bytes| u32::from_le_bytes(bytes))
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.0.get(at..)?.first_chunk().map(|&bytes| u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A record of a kind, with its time.
    fn record(kind: u32, time: u64, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let size = u32::try_from(body.len().saturating_add(16)).unwrap();
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &time.to_le_bytes(), &body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn load(time: u64, start: u64, name: &[u8]) -> Vec<u8> {
        record(0, time, &[&[1; 8], &words(&[start, start, 32, 1]), name, &[0], &[0x90; 32]])
    }

    fn header(flags: u64) -> Vec<u8> {
        let numbers = [MAGIC, 1, 40, 62, 0, 1].into_iter().flat_map(u32::to_le_bytes);
        numbers.chain(words(&[0, flags])).collect()
    }

    /// `.eh_frame` of 32 bytes of code before it: CFA = rbp + 16, RA and rbp under it.
    fn unwinding(time: u64) -> Vec<u8> {
        let cie = [16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0, 0, 0];
        let pc = -(32_i32 + 28);
        let program = [0x0c, 6, 16, 0x90, 1, 0x86, 2];
        let fde = [&[0; 0][..], &20_u32.to_le_bytes(), &24_u32.to_le_bytes(), &pc.to_le_bytes()];
        let fde = [&fde.concat()[..], &32_u32.to_le_bytes(), &[0], &program].concat();
        let table = [7; 20];
        let all = [&cie[..], &fde, &[0; 4], &table].concat();
        let sizes = [all.len(), table.len(), 0].map(|size| u64::try_from(size).unwrap());
        record(4, time, &[&words(&sizes), &all])
    }

    fn dump() -> Vec<u8> {
        let moved = record(1, 30, &[&[1; 8], &words(&[0, 0x1000, 0x9000, 32, 1])]);
        let records = [
            header(0),
            unwinding(10),
            load(10, 0x1000, b"first"),
            load(20, 0x2000, b"second\x1b"),
            record(7, 20, &[b"unknown"]),
            moved,
        ];
        records.concat()
    }

    fn read(bytes: &[u8], time: u64) -> (JitDump, Vec<JitCode>) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let mut dump = JitDump::new(Some(file));
        let mut codes = Vec::new();
        dump.read_to(time, |code| codes.push(code));
        (dump, codes)
    }

    fn told(codes: &[JitCode]) -> Vec<(u64, String)> {
        codes.iter().map(|code| (code.start, code.name.to_string())).collect()
    }

    #[test]
    fn d14_code_is_there_from_its_time_on_and_where_it_was_moved_to() {
        let (mut dump, mut codes) = read(&dump(), 15);
        assert_eq!(told(&codes), [(0x1000, "first".to_owned())]);
        dump.read_to(25, |code| codes.push(code));
        dump.read_to(PAUSE * 2, |code| codes.push(code));
        let expected = [(0x1000, "first"), (0x2000, "second\\x1b"), (0x9000, "first")];
        assert_eq!(told(&codes), expected.map(|(start, name)| (start, name.to_owned())));
        // Rows go with the code.
        let row = |code: &JitCode, at| code.row(at, WordSize::Eight).map(|row| format!("{row:?}"));
        let first = row(&codes[0], 0x1010).unwrap();
        assert_eq!(row(&codes[2], 0x9010).as_ref(), Some(&first));
        assert!(row(&codes[1], 0x2010).is_none());
        assert!(codes[0].row(0x1010, WordSize::Four).is_none());
        // Times of another clock say nothing.
        let other = [header(OTHER_CLOCK), load(50, 0x1000, b"a")].concat();
        assert_eq!(read(&other, 15).1.len(), 1);
    }

    #[test]
    fn d14_a_dump_that_is_cut_or_lies_says_as_much_as_it_has() {
        let whole = dump();
        for len in 0..whole.len() {
            let (mut dump, codes) = read(&whole[..len], 100);
            assert!(codes.len() < 3, "{len}");
            // What is written later is read then.
            let mut file = dump.file.as_ref().map(|file| file.try_clone().unwrap());
            let rest = file.as_mut().map_or(Ok(()), |file| file.write_all(&whole[len..]));
            rest.unwrap();
            let mut count = codes.len();
            dump.read_to(100 + PAUSE, |_| count += 1);
            assert_eq!(count, 3, "{len}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let (_, codes) = read(&changed, u64::MAX);
                codes.iter().for_each(|code| _ = code.row(code.start, WordSize::Eight));
                assert!(codes.len() <= changed.len() / 16);
            }
        }
        let is_of = |process, name| {
            JitDump::open(name, process, Processes::Unknown, &Notices::default()).is_some()
        };
        assert!(is_of(12, b"/tmp/jit-12.dump") && is_of(1, b"jit-1.dump"));
        let others =
            [&b"/tmp/jit-12.dump2"[..], b"/jit-13.dump", b"jit-.dump", b"", b"/jit--1.dump"];
        assert!(others.into_iter().all(|name| !is_of(12, name)));
    }
}
