//! The recording: a `perf.data` in pipe form.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use unwind_perf::record::{Attr, Comm, Encode, Endian, EventFormat, Mapping, Misc, Task};
use unwind_perf::ring::RingReader;

use crate::image::GuestImage;
use crate::samples::{FORMAT, now};

/// Types of records that tools write.
const HEADER_ATTR: u32 = 64;
const FINISHED_ROUND: u32 = 68;

/// `PERF_TYPE_SOFTWARE`, and which event of that kind: the clock of the CPU.
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const ATTR_SIZE: u32 = 64;

/// Where records go.
pub(crate) struct Recording {
    /// `None` if nothing is recorded.
    out: Option<BufWriter<File>>,
    buf: Vec<u8>,
}

impl Recording {
    /// Begins a recording: which event it is, what is mapped, what the threads of the vCPUs are called.
    pub(crate) fn start(
        to: Option<&Path>,
        image: &GuestImage,
        threads: &[(Task, u64)],
    ) -> io::Result<Self> {
        let mut this = Self { out: None, buf: vec![0; RingReader::MAX_RECORD] };
        let Some(to) = to else { return Ok(this) };
        let guest = to.with_extension("guest");
        fs::write(&guest, image.bytes())?;
        let mut out = BufWriter::new(File::create(to)?);
        out.write_all(b"PERFILE2\x10\0\0\0\0\0\0\0")?;
        write_record(&mut out, HEADER_ATTR, &attr())?;
        for &(task, number) in threads {
            let name = format!("vcpu {number}");
            let comm = Comm { task, name: name.as_bytes(), exec: false, id: now(task) };
            out.write_all(&encoded(&comm))?;
        }
        if let Some(&(task, _)) = threads.first() {
            write_host(&mut out, task)?;
            write_guest(&mut out, task, image, &fs::canonicalize(guest)?)?;
        }
        this.out = Some(out);
        Ok(this)
    }

    /// Empties all rings once.
    pub(crate) fn take(&mut self, rings: &mut [RingReader<'static>]) -> io::Result<()> {
        for ring in rings {
            while let Some(record) = ring.next(&mut self.buf).map_err(io::Error::other)? {
                if let Some(out) = &mut self.out {
                    out.write_all(record.bytes())?;
                }
            }
        }
        let Some(out) = &mut self.out else { return Ok(()) };
        write_record(out, FINISHED_ROUND, &[])?;
        out.flush()
    }
}

/// The event: `struct perf_event_attr`, in the shortest form that there is.
fn attr() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(SOFTWARE.to_le_bytes());
    bytes.extend(ATTR_SIZE.to_le_bytes());
    let flags = Attr::flags_word(FORMAT.flags, Endian::Little);
    for word in [CPU_CLOCK, 1, FORMAT.sample_type.bits(), 0, flags, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// What the monitor itself has mapped.
fn write_host(out: &mut impl Write, task: Task) -> io::Result<()> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[range, rights, offset, _, _, name] = &fields[..] else { continue };
        let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let Some((start, end)) = range.split_once('-').filter(|_| rights.contains('x')) else {
            continue;
        };
        let mut mapping = Mapping::of_code(task, number(start)?..number(end)?, name.as_bytes());
        mapping.offset = number(offset)?;
        mapping.sample_id = now(task);
        out.write_all(&encoded(&mapping))?;
    }
    Ok(())
}

/// What the guest has mapped, with the mark of a guest.
fn write_guest(
    out: &mut impl Write,
    task: Task,
    image: &GuestImage,
    file: &Path,
) -> io::Result<()> {
    for (bytes, offset, at) in image.segments() {
        let name = file.as_os_str().as_encoded_bytes();
        let mut mapping = Mapping::of_code(task, at..at + bytes.len() as u64, name);
        mapping.offset = offset;
        mapping.sample_id = now(task);
        let mut record = encoded(&mapping);
        let mode = if at >> 63 == 0 { Misc::GUEST_USER } else { Misc::GUEST_KERNEL };
        // The header's `misc`, after its type.
        record[4..6].copy_from_slice(&mode.0.to_le_bytes());
        out.write_all(&record)?;
    }
    Ok(())
}

fn encoded(record: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    let format = EventFormat { ..FORMAT };
    record.encode(format, Endian::Little, &mut bytes).expect("the format asks for what there is");
    bytes
}

fn write_record(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&0_u16.to_le_bytes())?;
    out.write_all(&(body.len() as u16 + 8).to_le_bytes())?;
    out.write_all(body)
}
