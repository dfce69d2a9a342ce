//! The file of a recording of a guest: a `perf.data` with the stacks of its vCPUs, as a monitor of the guest has them.
//!
//! Records have the marks of a guest (`PERF_RECORD_MISC_GUEST_KERNEL`, `…_USER`), and processes and threads are the
//! guest's own. perf drops call chains with the marks of guests, and takes the others of a guest's sample to be
//! the guest's. So chains have the marks of a kernel and of user code, and whose they are is said by the sample.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use unwind_perf::record::{
    Attr, AttrFlags, Comm, Context, Encode, Endian, MappedId, Mapping, Misc, Sample, SampleId, Task,
};
use unwind_target::Untrusted;
use unwind_target::clock::nanoseconds;

use crate::engine::SampledEvent;
use crate::engine::attrs::{CPU_CLOCK, with_call_chains};
use crate::recording::error::PerfError;
use crate::recording::guest_names::{GUEST_NAMES, GuestNames, ObjectKey};
use crate::recording::header::Feature;
use crate::recording::record_file::RecordFile;
use crate::session::guest_stops::StopTimes;
use crate::session::ledger::Ledger;
use crate::session::ledger_section::LedgerSection;
use crate::session::recording::begin_file;
use crate::session::stream::layout;
use crate::walks::found_by::FoundBy;
use crate::walks::found_frames::{FOUND_FRAMES, FoundFramesBuilder};
use crate::walks::marks::{Mark, Marks};

/// What is older can be read whatever ends the recorder.
const KEPT_WITHIN: Duration = Duration::from_secs(1);

/// The most threads of which it is known what they are called, and the most mappings that are known to be written. Then
/// they are written anew.
const KNOWN_LIMIT: usize = 1 << 16;

/// The process that mappings of a kernel itself are said to be of.
const KERNEL: Task = Task { pid: u32::MAX, tid: u32::MAX };

/// What a vCPU executes.
#[derive(Clone, Copy, Debug)]
pub struct GuestSample<'a> {
    pub cpu: u32,
    /// The guest's own numbers.
    pub task: Task,
    pub comm: &'a Untrusted,
    /// Whether it executes user code.
    pub is_user: bool,
    /// The pcs of the kernel's frames, and of those of user code, the innermost first.
    pub kernel: &'a [u64],
    pub user: &'a [u64],
    /// How each frame of user code was found.
    pub found: &'a [FoundBy],
    /// Why the stack is not complete, in a word.
    pub incomplete: Option<&'static str>,
}

/// Code of an object that a guest has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCode {
    pub name: Untrusted,
    pub build_id: Option<Box<[u8]>>,
    pub text: Range<u64>,
    /// Where in its file the first address is.
    pub offset: u64,
    /// How far above the addresses that it was linked for it is, wrapping.
    pub bias: u64,
    /// Whether it is the kernel's.
    pub is_kernel: bool,
}

/// The file while it is written.
#[derive(Debug)]
pub struct GuestRecording {
    out: RecordFile,
    attr: Attr,
    period: u64,
    /// The time of the record that was written last.
    time: u64,
    names: GuestNames,
    comms: HashMap<u32, (u32, Untrusted)>,
    /// What is mapped in each process, by where that begins.
    mapped: HashMap<(u32, u64), GuestCode>,
    ledger: Ledger,
    incomplete: Marks,
    found: FoundFramesBuilder,
    stops: StopTimes,
    due: Option<Instant>,
}

impl GuestRecording {
    /// Begins the file of a guest that is looked at `rate` times a second.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be written.
    pub fn begin(file: File, rate: u32) -> Result<Self, PerfError> {
        let mut attr = with_call_chains(CPU_CLOCK);
        attr.sample_period = rate.into();
        attr.flags = AttrFlags::FREQ
            | AttrFlags::MMAP
            | AttrFlags::MMAP2
            | AttrFlags::BUILD_ID
            | AttrFlags::COMM
            | AttrFlags::USE_CLOCKID
            | AttrFlags::SAMPLE_ID_ALL
            | AttrFlags::EXCLUDE_HOST;
        let events = [SampledEvent { attr, ids: Vec::new(), name: None }];
        Ok(Self {
            out: begin_file(file, &events, false, false)?,
            attr: layout(&events)?,
            period: 1_000_000_000_u64.checked_div(rate.into()).unwrap_or(1),
            time: 0,
            names: GuestNames::default(),
            comms: HashMap::new(),
            mapped: HashMap::new(),
            ledger: Ledger::new(),
            incomplete: Marks::default(),
            found: FoundFramesBuilder::default(),
            stops: StopTimes::default(),
            due: None,
        })
    }

    /// Takes note of code of a process, before samples that are in it; of the kernel's own, of any process.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub fn code(&mut self, task: Task, code: &GuestCode) -> io::Result<()> {
        let task = if code.is_kernel { KERNEL } else { task };
        let place = (task.pid, code.text.start);
        if self.mapped.get(&place) == Some(code) {
            return Ok(());
        }
        if self.mapped.len() >= KNOWN_LIMIT {
            self.mapped.clear();
        }
        self.mapped.insert(place, code.clone());
        let linked = code.text.start.wrapping_sub(code.bias);
        self.names.add_object(&key_of(code), linked.wrapping_sub(code.offset));
        // As it is in the section, by which it is found.
        let name = code.name.escaped().to_string();
        let mut mapping = Mapping::of_code(task, code.text.clone(), name.as_bytes());
        mapping.offset = code.offset;
        mapping.id = code.build_id.as_deref().map_or(MappedId::Unknown, MappedId::BuildId);
        mapping.sample_id = self.sample_id(task);
        self.write(&mapping, code.is_kernel)
    }

    /// Takes note of a function in code that was taken note of: where it begins and ends now.
    pub fn function(&mut self, code: &GuestCode, range: &Range<u64>, name: &Untrusted) {
        let linked = |addr: u64| addr.wrapping_sub(code.bias);
        let (start, end) = (linked(range.start), linked(range.end));
        self.names.add_function(&key_of(code), (start, end), name);
    }

    /// Writes a sample.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub fn sample(&mut self, sample: &GuestSample<'_>) -> io::Result<()> {
        let Task { pid, tid } = sample.task;
        let comm = (pid, sample.comm.clone());
        // The idle threads of all CPUs have one number.
        if self.comms.get(&tid) != Some(&comm) {
            let comm = Comm {
                task: sample.task,
                name: sample.comm.as_bytes(),
                exec: false,
                id: self.sample_id(sample.task),
            };
            self.write(&comm, false)?;
            if self.comms.len() >= KNOWN_LIMIT {
                self.comms.clear();
            }
            self.comms.insert(tid, (pid, sample.comm.clone()));
        }
        let parts = [(Context::Kernel, sample.kernel), (Context::User, sample.user)];
        let parts = parts.into_iter().filter(|(_, pcs)| !pcs.is_empty());
        let chain: Vec<u64> = parts
            .flat_map(|(mark, pcs)| [mark.word()].into_iter().chain(pcs.iter().copied()))
            .collect();
        let time = nanoseconds(ClockId::Monotonic).unwrap_or(0);
        // Samples are told from each other by their times.
        self.time = time.max(self.time.saturating_add(1));
        let innermost = if sample.is_user { sample.user } else { sample.kernel };
        let encoded = Sample {
            misc: if sample.is_user { Misc::GUEST_USER } else { Misc::GUEST_KERNEL },
            identifier: None,
            ip: Some(innermost.first().copied().unwrap_or(0)),
            task: Some(sample.task),
            time: Some(self.time),
            addr: None,
            id: None,
            stream_id: None,
            cpu: Some(sample.cpu),
            period: Some(self.period),
            callchain: Some(chain),
        };
        let encoded = self.encoded(&encoded)?;
        self.out.write_all(&encoded)?;
        let number = usize::try_from(self.ledger.written).unwrap_or(usize::MAX);
        self.found.take_ways(number, sample.found.iter().copied());
        let count = |place: &mut u64| *place = place.saturating_add(1);
        count(&mut self.ledger.written);
        match sample.incomplete {
            Some(reason) => {
                count(self.ledger.incomplete.entry(reason.to_owned()).or_default());
                self.incomplete.add(Mark { time: self.time, thread: tid, reason });
            }
            None if sample.user.is_empty() => count(&mut self.ledger.kernel_only),
            None => count(&mut self.ledger.complete),
        }
        Ok(())
    }

    /// Takes note of a stop of the guest, whose samples are written, and makes readable what there is if it is time.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub fn stop(&mut self, stood: Duration) -> io::Result<()> {
        self.stops.add(u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX));
        let now = Instant::now();
        let due = *self.due.get_or_insert_with(|| now.checked_add(KEPT_WITHIN).unwrap_or(now));
        if now < due && !self.out.is_full() {
            return Ok(());
        }
        self.due = None;
        let section = LedgerSection::of_marks_so_far(self.ledger.clone(), &self.incomplete);
        let sections = self.sections(&section)?;
        self.out.checkpoint(&sections)
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// What writing fails with.
    pub fn finish(mut self) -> io::Result<Ledger> {
        self.ledger.guest = Some(self.stops.stops());
        let ledger = mem::replace(&mut self.ledger, Ledger::new());
        let incomplete = mem::take(&mut self.incomplete);
        let section = LedgerSection::of_marks(ledger, &incomplete);
        let found = mem::take(&mut self.found).finish();
        let mut sections = self.sections(&section)?.to_vec();
        sections.push((FOUND_FRAMES, serde_json::to_vec(&found)?));
        self.out.finish(&sections)?;
        Ok(section.ledger)
    }

    fn sections(&self, ledger: &LedgerSection) -> io::Result<[(Feature, Vec<u8>); 2]> {
        let ledger = serde_json::to_vec(ledger)?;
        Ok([(GUEST_NAMES, self.names.section()?), (Feature::LEDGER, ledger)])
    }

    fn sample_id(&self, task: Task) -> SampleId {
        SampleId { task: Some(task), time: Some(self.time), cpu: Some(0), ..SampleId::default() }
    }

    /// Writes a record about the guest's kernel, or about its user code.
    fn write(&mut self, record: &impl Encode, is_kernel: bool) -> io::Result<()> {
        let mut bytes = self.encoded(record)?;
        let mode = if is_kernel { Misc::GUEST_KERNEL } else { Misc::GUEST_USER };
        // After the type of the record.
        if let Some(misc) = bytes.get_mut(4..).and_then(<[u8]>::first_chunk_mut) {
            let others = record.misc().0 & !record.misc().cpu_mode().0;
            *misc = ENDIAN.bytes_of_u16(others | mode.0);
        }
        self.out.write_all(&bytes)
    }

    fn encoded(&self, record: &impl Encode) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        record.encode(self.attr.format, ENDIAN, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }
}

fn key_of(code: &GuestCode) -> ObjectKey {
    (Untrusted::from(code.name.escaped().to_string()), code.build_id.clone())
}

const ENDIAN: Endian = Endian::Little;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;
    use crate::recording::reader::PerfReader;
    use crate::session::ledger_section::told;
    use crate::walks::found_frames::FoundFrames;

    /// Code of a process, and a sample in it.
    fn sample(recording: &mut GuestRecording, pid: u32, incomplete: Option<&'static str>) {
        let task = Task { pid, tid: pid };
        let code = GuestCode {
            name: Untrusted::from("program"),
            build_id: None,
            text: 0x40_0000..0x50_0000,
            offset: 0,
            bias: 0,
            is_kernel: false,
        };
        recording.code(task, &code).unwrap();
        let comm = &Untrusted::from("comm");
        let (kernel, user) = (&[][..], &[0x40_1000][..]);
        let found = &[FoundBy::Sampled];
        let is_user = true;
        let sample = GuestSample { cpu: 0, task, comm, is_user, kernel, user, found, incomplete };
        recording.sample(&sample).unwrap();
    }

    #[test]
    fn what_is_known_of_the_processes_of_a_recording_is_bounded() {
        let mut recording = GuestRecording::begin(tempfile::tempfile().unwrap(), 49).unwrap();
        let processes = u32::try_from(KNOWN_LIMIT).unwrap() + 10;
        for pid in 1..processes {
            sample(&mut recording, pid, None);
        }
        let GuestRecording { mapped, comms, .. } = &recording;
        assert!(mapped.len() <= KNOWN_LIMIT && comms.len() <= KNOWN_LIMIT);
        // Those of them that come again are written again.
        assert!(!mapped.contains_key(&(1, 0x40_0000)) && !comms.contains_key(&1));
        sample(&mut recording, 1, None);
        assert!(recording.mapped.contains_key(&(1, 0x40_0000)) && recording.comms.contains_key(&1));
    }

    #[test]
    fn the_samples_that_are_not_complete_are_listed_where_they_are_few() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut recording = GuestRecording::begin(file.reopen().unwrap(), 49).unwrap();
        for (pid, incomplete) in [(1, None), (2, Some("gap")), (3, None)] {
            sample(&mut recording, pid, incomplete);
            recording.stop(Duration::from_millis(3)).unwrap();
        }
        recording.finish().unwrap();
        let mut reader = PerfReader::open(file.path()).unwrap();
        let told = told(&mut reader).unwrap().unwrap();
        assert!(told.others_are_complete());
        let listed: Vec<_> =
            told.incomplete.iter().map(|(_, thread, reason)| (*thread, reason.as_str())).collect();
        assert_eq!(listed, [(2, "gap")]);
        let found = FoundFrames::read(&mut reader).unwrap().unwrap();
        let of_samples = (0..4).map(|number| found.of_sample(number).collect::<Vec<_>>());
        let sampled = vec![FoundBy::Sampled];
        assert_eq!(
            of_samples.collect::<Vec<_>>(),
            [sampled.clone(), sampled.clone(), sampled, vec![]]
        );
        assert_eq!(told.ledger.guest.unwrap().median_nanoseconds, 3_000_000);
    }
}
