//! Snapshots by the kernel's sampling of programs that run on.

use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::thread::sleep;

use unwind_snapshot::{Snapshot, Writer};

use crate::error::Error;
use crate::snapshot_cmd::command::Subject;
use crate::snapshot_cmd::event::{self, Attr};
use crate::snapshot_cmd::sample::{self, What};
use crate::snapshot_cmd::spaces::Spaces;
use crate::snapshot_cmd::{Args, LOOK_EVERY, SnapshotError, failed};
use crate::target::maps::{self, Backing};
use crate::untrusted::plain;

/// Samples the program and writes what came; returns how many snapshots.
///
/// # Errors
///
/// [`Error`].
pub(crate) fn capture<W: Write>(args: &Args, writer: &mut Writer<W>) -> Result<usize, Error> {
    let wanted = args.count.saturating_mul(args.skip.saturating_add(1));
    let attr = Attr { rate: args.rate, stack: args.stack, on_exec: args.pid.is_none() };
    // The events of this thread are inherited by the command that it starts,
    // and begin with the command's program.
    let mut rings = open(&attr, args.pid)?;
    let mut subject = Subject::new(args.pid, &args.command)?;
    let mut events = mapped_before(args.pid)?;
    let mut records = Vec::new();
    let mut runs = true;
    while runs && samples(&events) < wanted {
        sleep(LOOK_EVERY);
        // What came before its end is in the rings afterwards.
        runs = subject.runs()?;
        for ring in &mut rings {
            records.clear();
            ring.drain(&mut records);
            sample::decode(&records, &mut events);
        }
    }
    drop(rings);
    subject.finish(args.kill);
    // Each CPU has a ring of its own.
    events.sort_by_key(|event| event.time);
    write(args, events, writer).map_err(|error| failed(&args.output, error))
}

fn samples(events: &[sample::Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::Sample(_))).count()
}

/// Opens an event for each CPU and each thread that is there.
fn open(attr: &Attr, pid: Option<i32>) -> Result<Vec<event::Event>, SnapshotError> {
    const THIS_THREAD: i32 = 0;
    let threads = match pid {
        None => vec![THIS_THREAD],
        Some(pid) => {
            let list = std::fs::read_dir(format!("/proc/{pid}/task"));
            let names = list
                .into_iter()
                .flatten()
                .filter_map(|entry| plain(entry.ok()?.file_name().as_bytes())?.parse().ok());
            names.collect()
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let cpus = i32::try_from(cpus).unwrap_or(i32::MAX);
    let pairs = threads.iter().flat_map(|&thread| (0..cpus).map(move |cpu| (thread, cpu)));
    pairs.map(|(thread, cpu)| event::Event::open(attr, thread, cpu)).collect()
}

/// What a process had mapped when it was first looked at.
fn mapped_before(pid: Option<i32>) -> Result<Vec<sample::Event>, Error> {
    let Some(pid) = pid else { return Ok(Vec::new()) };
    let path = format!("/proc/{pid}/maps");
    let text = std::fs::read(&path).map_err(|error| Error::Read { path: path.into(), error })?;
    let process = u32::try_from(pid).unwrap_or_default();
    let code = maps::parse(&text).into_iter().filter(|mapping| mapping.executable);
    let events = code.filter_map(|mapping| {
        let Backing::File(file) = mapping.backing else { return None };
        let path = file.path.into_os_string().into_encoded_bytes();
        let what = What::Map { process, range: mapping.range, offset: mapping.offset, path };
        Some(sample::Event { time: 0, what })
    });
    Ok(events.collect())
}

fn write<W: Write>(
    args: &Args,
    events: Vec<sample::Event>,
    writer: &mut Writer<W>,
) -> std::io::Result<usize> {
    let mut spaces = Spaces::default();
    let (mut seen, mut taken) = (0_usize, 0_usize);
    for event in events {
        match event.what {
            What::Exec { process } => spaces.exec(process),
            What::Fork { process, parent } => spaces.fork(process, parent),
            What::Map { process, range, offset, path } => {
                spaces.map(process, range, offset, &path, writer)?;
            }
            What::Sample(sample) => {
                let is_left_out = seen.checked_rem(args.skip.saturating_add(1)) != Some(0);
                seen = seen.saturating_add(1);
                if is_left_out || taken == args.count {
                    continue;
                }
                let [_, _, _, _, _, _, _, rsp, ..] = sample.gpr;
                let space = spaces.index(sample.process, writer)?;
                writer.snapshot(&Snapshot {
                    space,
                    process: sample.process,
                    thread: sample.thread,
                    time: event.time,
                    rip: sample.rip,
                    gpr: sample.gpr,
                    is_whole: false,
                    stack_start: rsp,
                    stack: &sample.stack,
                })?;
                taken = taken.saturating_add(1);
            }
        }
    }
    Ok(taken)
}
