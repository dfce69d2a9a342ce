//! Snapshots by the kernel's sampling, while the program runs, as a `perf.data`.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::thread::sleep;
use std::time::Duration;

use unwind_perf::record::{Attr, Endian};
use unwind_target::target::held_process;

use crate::Args;
use crate::address_spaces::build_id;
use crate::command::Subject;
use crate::error::Error;
use crate::event::{self, Event};
use crate::perf_data::{self, Timed};

/// How often the program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Samples the program and writes what came; returns the number of snapshots.
///
/// # Errors
///
/// [`Error`].
pub(crate) fn capture(args: &Args) -> Result<usize, Error> {
    let written = |error| Error::Write { path: args.output.clone(), error };
    // What cannot be written is known before the command is started.
    let mut file = io::BufWriter::new(File::create(&args.output).map_err(written)?);
    let asked = event::Attr { rate: args.rate, stack: args.stack, on_exec: args.pid.is_none() };
    let words = asked.words();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let attr = Attr::parse(&bytes, Endian::Little)
        .map_err(|error| Error::Open(io::Error::other(error)))?;
    // The events of this thread are inherited by the command that it starts,
    // and begin with the command's program.
    let mut rings = open(&asked, args.pid)?;
    let mut subject = Subject::new(args.pid, &args.command)?;
    let mut kept = args.pid.map(existing).transpose()?.unwrap_or_default();
    let wanted = args.count.saturating_mul(args.skip.saturating_add(1));
    let mut bytes = Vec::new();
    let mut runs = true;
    while runs && kept.iter().filter(|record| record.is_sample).count() < wanted {
        sleep(LOOK_EVERY);
        // What came before its end is in the rings afterwards.
        runs = subject.runs()?;
        for ring in &mut rings {
            bytes.clear();
            ring.drain(&mut bytes)?;
            perf_data::keep(&bytes, &attr, &mut kept);
        }
    }
    drop(rings);
    subject.finish(args.kill);
    // Each CPU has a ring of its own.
    kept.sort_by_key(|record| record.time);
    let (mut seen, mut taken) = (0_usize, 0_usize);
    kept.retain(|record| {
        if !record.is_sample {
            return true;
        }
        let is_taken = !args.leaves_out(seen) && taken < args.count;
        seen = seen.saturating_add(1);
        taken = taken.saturating_add(usize::from(is_taken));
        is_taken
    });
    perf_data::write(&mut file, words, &kept).and_then(|()| file.flush()).map_err(written)?;
    Ok(taken)
}

/// Opens an event for each CPU and each thread that is there.
fn open(attr: &event::Attr, pid: Option<i32>) -> Result<Vec<Event>, Error> {
    const THIS_THREAD: i32 = 0;
    let threads = match pid {
        None => vec![THIS_THREAD],
        Some(pid) => {
            let list = std::fs::read_dir(format!("/proc/{pid}/task"));
            let names = list.into_iter().flatten().filter_map(Result::ok);
            names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect()
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let cpus = i32::try_from(cpus).unwrap_or(i32::MAX);
    let pairs = threads.iter().flat_map(|&thread| (0..cpus).map(move |cpu| (thread, cpu)));
    pairs.map(|(thread, cpu)| Event::open(attr, thread, cpu)).collect()
}

/// What there is to say of a process that was not started by us.
fn existing(process: i32) -> Result<Vec<Timed>, Error> {
    let path = format!("/proc/{process}/maps");
    let code = held_process::code_of(process)
        .map_err(|error| Error::Read { path: path.clone().into(), error })?;
    let name = std::fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    let code = code.iter().map(|code| {
        let id = build_id(&code.path).unwrap_or_default();
        (code.range.clone(), code.offset, code.path.as_os_str().as_bytes(), id)
    });
    let records = perf_data::existing(
        u32::try_from(process).unwrap_or_default(),
        name.trim_ascii_end(),
        code,
    );
    records.map_err(|error| Error::Read { path: path.into(), error: io::Error::other(error) })
}
