//! `unwind record --guest`: samples of what the vCPUs of a guest execute.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use unwind_core::Frame;
use unwind_guest::CodeKind;
use unwind_perf::record::Task;
use unwind_profile::mapped::names::GUEST_KERNEL;
use unwind_profile::recording::error::RecordingError;
use unwind_profile::session::guest_recording::{GuestCode, GuestRecording, GuestSample};
use unwind_profile::walks::found_by::FoundBy;
use unwind_target::Untrusted;
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::commands::guest::error::GuestError;
use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::linux::FoundName;
use crate::commands::guest::monitor::Source;
use crate::commands::guest::registers::VcpuState;
use crate::commands::guest::walk::{GuestWalks, Part, VcpuStack};
use crate::commands::guest::{Guest, Look, read_sysroot, warn};
use crate::commands::record::files::Files;
use crate::commands::record::signals::end_at;
use crate::commands::record::told::{Telling, tell};
use crate::failure::Failure;
use crate::progress::Elapsed;

/// Which guest is recorded.
#[derive(Debug, clap::Args)]
pub(crate) struct GuestArgs {
    /// What the vCPUs of a guest execute, from outside: stacks of its kernel and user code
    ///
    /// The guest stands while its stacks are walked: that many times a second as --rate says, 49 without.
    /// Nothing is needed in it. `unwind guest --help` says what is found there. perf reads the recording as
    /// `perf report --guestkallsyms /dev/null`.
    #[arg(long, group = "subject", requires = "monitor",
          conflicts_with_all = ["event", "count", "off_cpu", "cpu", "every", "stack_bytes", "ring_kib",
                                "keep_stacks", "compression_level", "uretprobes", "deferred",
                                "command"])]
    pub(crate) guest: bool,

    #[command(flatten)]
    source: Source,
}

/// How it is recorded.
pub(super) struct How<'a> {
    pub(super) output: &'a Path,
    pub(super) rate: u32,
    /// In seconds.
    pub(super) duration: Option<u64>,
    pub(super) trust_fp: bool,
    pub(super) telling: Telling,
}

/// How many frames of a stack there are at most, as of `unwind guest`.
const MAX_FRAMES: u32 = 510;

/// How long is slept at a time, so that a recording ends soon after it is to.
const NAP: Duration = Duration::from_millis(100);

/// Records a guest.
///
/// # Errors
///
/// [`Failure`] if it cannot be looked at, or the file not be written.
pub(super) fn record(args: &GuestArgs, how: &How<'_>) -> Result<(), Failure> {
    let file_error =
        |error: io::Error| RecordingError { path: how.output.to_owned(), error: error.into() };
    let known = GuestFiles::open(&args.source.symbols)?;
    let frame_pointers = FramePointerRows { is_trusted: how.trust_fp };
    let mut walks = GuestWalks::new(&known, frame_pointers, MAX_FRAMES);
    // Until here there is nothing to keep, and no guest that stands. A stub has signals wait, and then this again.
    read_sysroot(&args.source, &mut walks)?;
    let ends = end_at(&[Signal::SIGINT, Signal::SIGTERM], &Arc::new(AtomicI32::new(0)));
    let mut guest = Guest::open(&args.source, &known, walks)?;
    let files = Files { path: how.output.to_owned(), limit: None };
    let not_begun = |error| RecordingError { path: how.output.to_owned(), error };
    let file = files.begin(SystemTime::now()).map_err(not_begun)?;
    file.clear().map_err(file_error)?;
    let recording = GuestRecording::begin(file.file, how.rate);
    let mut recording = recording.map_err(not_begun)?;
    let elapsed = Elapsed::new("recording until Ctrl-C, the end or --duration:");
    let until =
        how.duration.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let pause = Duration::from_secs(1).checked_div(how.rate).unwrap_or_default();
    let is_over =
        || ends.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
    let mut due = Instant::now();
    let mut end = None;
    let mut failed = Ok(());
    while !is_over() {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            sleep(left.min(NAP));
            continue;
        }
        // What comes late is not made up for: that would be a burst.
        due = Instant::now().checked_add(pause).unwrap_or(due);
        match guest.stacks() {
            Ok(look) => write(&mut recording, &known, &look).map_err(file_error)?,
            Err(GuestError::Closed) => {
                end = Some("the guest has ended".to_owned());
                break;
            }
            // What there is so far is not thrown away.
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    let ledger = recording.finish().map_err(file_error)?;
    elapsed.finish();
    warn(&guest.warnings().into_iter().chain(end).collect::<Vec<_>>());
    tell(how.telling, how.output, &ledger)?;
    ledger.check()?;
    Ok(failed?)
}

/// Writes the samples of one stop.
fn write(recording: &mut GuestRecording, known: &GuestFiles, look: &Look) -> io::Result<()> {
    for (vcpu, state, stack) in &look.stacks {
        write_sample(recording, known, *vcpu, state, stack)?;
    }
    recording.stop(look.stood)
}

fn write_sample(
    recording: &mut GuestRecording,
    known: &GuestFiles,
    vcpu: u64,
    state: &VcpuState,
    stack: &VcpuStack,
) -> io::Result<()> {
    let task = stack.task.as_ref();
    let comm = task.map_or_else(
        || Untrusted::from(format!("vCPU {vcpu}")),
        |task| Untrusted::from(task.comm().to_vec()),
    );
    let task = task.map_or(Task { pid: 0, tid: 0 }, |task| Task { pid: task.pid, tid: task.tid });
    let is_user = state.registers.is_user();
    let (kernel, user) = match is_user {
        true => (None, Some(&stack.part)),
        false => (Some(&stack.part), stack.user.as_ref()),
    };
    for (part, is_kernel) in [(kernel, true), (user, false)] {
        let Some(part) = part else { continue };
        let is_wide = part.code == CodeKind::X86_64;
        for (frame, found) in part.frames.iter().zip(&part.names) {
            let of_file = || known.name(is_wide, frame.pc.lookup_addr().get());
            if let Some(found) = found.clone().or_else(of_file) {
                write_name(recording, task, &found, is_kernel)?;
            }
        }
    }
    let pcs = |part: Option<&Part>| -> Vec<u64> {
        let frames = part.into_iter().flat_map(|part| &part.frames);
        // Readers look for the callers' names one byte before, as after calls.
        let shown = |(at, frame): (usize, &Frame)| match at {
            0 => frame.pc.addr().get(),
            _ => frame.pc.lookup_addr().get().wrapping_add(1),
        };
        frames.enumerate().map(shown).collect()
    };
    let frames = user.into_iter().flat_map(|part| &part.frames);
    let found: Vec<FoundBy> =
        frames.map(|frame| FoundBy::of_provenance(frame.provenance)).collect();
    recording.sample(&GuestSample {
        cpu: u32::try_from(vcpu).unwrap_or(u32::MAX),
        task,
        comm: &comm,
        is_user,
        kernel: &pcs(kernel),
        user: &pcs(user),
        found: &found,
        incomplete: stack.incomplete(),
    })
}

/// Takes note of what an address is called.
fn write_name(
    recording: &mut GuestRecording,
    task: Task,
    found: &FoundName,
    is_kernel: bool,
) -> io::Result<()> {
    let FoundName { object, bias, text, offset, build_id, function } = found;
    let code = GuestCode {
        name: match object.as_bytes() {
            // As perf calls it.
            b"[kernel]" => Untrusted::from([GUEST_KERNEL, b"_text"].concat()),
            _ => object.clone(),
        },
        build_id: build_id.clone(),
        text: text.clone(),
        offset: *offset,
        bias: bias.unwrap_or(0),
        is_kernel,
    };
    recording.code(task, &code)?;
    if let Some((name, range)) = function {
        recording.function(&code, range, name);
    }
    Ok(())
}
