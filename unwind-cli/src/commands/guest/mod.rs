//! `unwind guest`: the stacks of what runs in a virtual machine, from outside.

mod allowance;
pub(crate) mod dump;
pub(crate) mod error;
pub(crate) mod files;
mod folded;
mod gdb;
mod gdb_packets;
mod gdb_registers;
mod kernel;
pub(crate) mod linux;
pub(crate) mod monitor;
mod pause;
mod programs;
mod qmp;
mod ram;
pub(crate) mod registers;
mod report;
mod sysroot;
pub(crate) mod walk;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::ArgGroup;
use unwind_target::InputError;
use unwind_target::counted::counted;
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::coloured;
use crate::commands::guest::dump::MachineDump;
use crate::commands::guest::files::{GuestFiles, SymbolFile};
use crate::commands::guest::folded::Folded;
use crate::commands::guest::monitor::{Monitor, Source};
use crate::commands::guest::pause::Pause;
use crate::commands::guest::ram::GuestRam;
use crate::commands::guest::registers::VcpuState;
use crate::commands::guest::report::{GuestReport, VcpuReport};
use crate::commands::guest::sysroot::Sysroot;
use crate::commands::guest::walk::{GuestWalks, VcpuStack};
use crate::commands::stack::error::Incomplete;
use crate::commands::stack::text::row_counts;
use crate::failure::Failure;
use crate::progress::Elapsed;

use crate::commands::guest::error::GuestError;
pub(crate) use crate::commands::guest::gdb::read_stub;
pub(crate) use crate::commands::guest::qmp::read_answers;

/// Print the stacks of what runs in a QEMU guest.
///
/// Looks from outside: registers come from QEMU, stacks from the guest's
/// memory by way of its page tables. Nothing is needed in the guest, and
/// nothing in it is changed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP,
          group(ArgGroup::new("monitor").args(["qmp", "gdb"]).required(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Let the guest run while it is looked at: stacks may change meanwhile
    #[arg(long, conflicts_with = "gdb")]
    live: bool,

    /// Take N samples, and print them as folded stacks
    #[arg(long, value_name = "N", conflicts_with = "json",
          value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,

    /// Samples a second
    #[arg(long, value_name = "F", default_value_t = 49, requires = "sample",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hz: u32,

    /// Declare that all code without a table keeps frame pointers, so that a frame
    /// found by one is no guess
    #[arg(long)]
    trust_fp: bool,

    /// End with exit code 9 if a stack is incomplete; it is printed all the same
    #[arg(long, conflicts_with = "sample")]
    fail_incomplete: bool,

    /// How many frames of a stack to show at most
    #[arg(long, value_name = "N", default_value_t = 510)]
    max_frames: u32,

    /// Print one JSON object instead of text; `--help` describes it
    #[arg(long)]
    json: bool,

    /// Print to standard error how often a row of a table had to be looked up
    #[arg(long)]
    stats: bool,
}

const LONG_HELP: &str = "\
The guest has to be started with a QMP socket, by the same user:

  qemu-system-x86_64 -m 1G -qmp unix:/tmp/guest.qmp,server=on,wait=off …

  unwind guest --qmp /tmp/guest.qmp

--gdb takes the stub for gdb of QEMU (-gdb tcp::1234) or of another monitor, if that tells the
control registers and reads physical memory (QEMU's packet Qqemu.PhyMemMode). The guest stands while the stub
is connected to and its kernel is looked for, which may take seconds, and runs afterwards, also if it
was paused before.

Its memory is that of the QEMU process. Whoever may not read that starts the guest with
its memory in a shared file, and gives it by --mem:

  -machine q35,memory-backend=ram \\
  -object memory-backend-file,id=ram,size=1G,mem-path=/dev/shm/guest,share=on

A guest that runs is stopped while it is looked at, for some milliseconds, and
continues afterwards; one that is paused stays so. With --live it is not stopped:
its registers are then a moment older than its memory, so some stacks are wrong
or end early.

A vCPU that executes user code has one stack; where the kernel runs, the stack of the
user code that has entered it follows. Of a 64-bit Linux kernel all that is needed is
found in the guest: where it is, its symbols, its ORC tables or that it keeps frame
pointers, its modules, the thread that runs, and the programs and libraries by the ELF
headers of their code, their .sframe or .eh_frame and dynamic symbols, in the pages that
the thread has mapped or, since Linux 5.10, that the kernel keeps of their files. What
of it is not in memory ends the stack, with that reason. The kernel needs kallsyms and,
for modules, CONFIG_KALLSYMS_ALL and BTF, for threads and files BTF, as distributions
have them. Kernels of micro-VMs often lack both, and keep frame pointers: stacks have no
thread, then, and what no task has touched of a program's table ends them, without
--sysroot.

--sysroot is a folder with files of the guest, such as its root. What has the build id of a
program of the guest there gives names of functions that are not exported, and its
.eh_frame or .debug_frame where the program has no such table in memory, as many static
ones do not.

--symbols is for other kernels and programs: a vmlinux, the image that the guest has booted
(vmlinuz), or a program, which is walked by its SFrame table, its .eh_frame and frame pointers.

Folded stacks: frames from the outermost one on, joined by `;`, and a count.
The first word is `[user]`, `[user 32-bit]`, `[kernel]`, or `[idle]` for a vCPU
that waits; `[incomplete]` follows where the outermost frame was not found, or
callers may be missing before it. Frames of a kernel that user code has entered follow
those of the user code after the word `[kernel]`.

JSON (its JSON Schema: docs/schema/guest.json): one object with
  schema    1; rises when a field changes its meaning or goes
  vcpus     a list, each with
    vcpu, arch (`x86-64`, `ia32` or null for 16-bit code),
    privilege (`user` or `kernel`), halted,
    task          null, or the thread that runs: comm, pid, tid
    paging (`none`, `2-level`, `pae`, `4-level` or `5-level`)
    frames, end   as of `unwind stack`
    user          null, or of the user code that has entered the kernel: arch, frames, end
  warnings  a list of lines

`unwind --help` lists the exit codes.";

/// Runs `unwind guest`.
///
/// # Errors
///
/// [`Failure`] if the guest cannot be looked at, or the output not be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let files = GuestFiles::open(&args.source.symbols)?;
    let frame_pointers = FramePointerRows { is_trusted: args.trust_fp };
    let mut walks = GuestWalks::new(&files, frame_pointers, args.max_frames);
    read_sysroot(&args.source, &mut walks)?;
    let mut guest = Guest::open(&args.source, &files, walks)?;
    guest.live = args.live;
    match args.sample {
        Some(samples) => sample(guest, samples, args),
        None => show(guest, args),
    }
}

/// A guest, and what is known of its code.
pub(crate) struct Guest<'f> {
    monitor: Monitor,
    vcpus: Vec<u64>,
    ram: GuestRam,
    files: &'f GuestFiles,
    walks: GuestWalks<'f>,
    live: bool,
    /// What is wrong with the files, as far as they were needed.
    troubles: BTreeSet<String>,
}

/// What the vCPUs execute at one moment.
pub(crate) struct Look {
    pub(crate) stacks: Vec<(u64, VcpuState, VcpuStack)>,
    /// How long the guest stood for it.
    pub(crate) stood: Duration,
}

/// What is read of the guest's files before its monitor is connected to, which may take a minute.
///
/// # Errors
///
/// [`Failure`] if the folder cannot be read.
pub(crate) fn read_sysroot(source: &Source, walks: &mut GuestWalks<'_>) -> Result<(), Failure> {
    if let Some(path) = &source.sysroot {
        let elapsed = Elapsed::new("reading the files of --sysroot:");
        let sysroot = Sysroot::read(path);
        elapsed.finish();
        let failed = |error| InputError::Read { path: path.clone(), error };
        walks.use_sysroot(sysroot.map_err(failed)?);
    }
    Ok(())
}

impl<'f> Guest<'f> {
    /// Connects to the monitor of a guest.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it cannot be looked at.
    pub(crate) fn open(
        source: &Source,
        files: &'f GuestFiles,
        walks: GuestWalks<'f>,
    ) -> Result<Self, Failure> {
        let (mut monitor, ram) = source.connect()?;
        let vcpus = monitor.vcpus()?;
        let (live, troubles) = (false, BTreeSet::new());
        let mut guest = Self { monitor, vcpus, ram, files, walks, live, troubles };
        guest.prepare()?;
        Ok(guest)
    }

    /// Finds the kernel before a stop. What is not found now is looked for at each stop.
    fn prepare(&mut self) -> Result<(), GuestError> {
        if let Some(&vcpu) = self.vcpus.first()
            && let Ok(state) = self.monitor.state(vcpu)
        {
            self.walks.prepare(&state.registers, &mut self.ram);
        }
        Ok(())
    }

    /// Walks the stacks of all vCPUs.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not tell their registers.
    pub(crate) fn stacks(&mut self) -> Result<Look, GuestError> {
        let mut hold = Pause::new(&mut self.monitor, self.live)?;
        let mut stacks = Vec::new();
        for &vcpu in &self.vcpus {
            let state = hold.monitor().state(vcpu)?;
            stacks.push((vcpu, state, self.walks.walk(&state, &mut self.ram)));
        }
        let stood = hold.release()?;
        self.monitor.begin()?;
        Ok(Look { stacks, stood })
    }

    /// What is to be told of the guest and the files.
    pub(crate) fn warnings(&mut self) -> Vec<String> {
        self.walks.warnings().chain(self.troubles.iter().cloned()).collect()
    }

    /// The stacks of all vCPUs with names.
    fn look(&mut self) -> Result<Vec<VcpuReport>, GuestError> {
        let Look { stacks, .. } = self.stacks()?;
        // The guest runs meanwhile.
        let name = |(vcpu, registers, stack)| {
            VcpuReport::new(vcpu, &registers, stack, self.files, &mut self.troubles)
        };
        Ok(stacks.into_iter().map(name).collect())
    }

    /// Says how often a row was looked up, if that is asked for.
    fn print_stats(&self, args: &Args) {
        if args.stats {
            // With standard error gone there is no other place to tell it.
            let _ = writeln!(io::stderr(), "{}", row_counts(self.walks.rows()));
        }
    }
}

/// Prints the stacks of one point of time.
fn show(mut guest: Guest<'_>, args: &Args) -> Result<(), Failure> {
    let vcpus = guest.look()?;
    let report = GuestReport::new(vcpus, guest.walks.warnings(), &guest.troubles);
    print(&report, args.json)?;
    guest.print_stats(args);
    check(&report, args.fail_incomplete)
}

/// Prints the stacks of the CPUs in the dump of a machine.
///
/// # Errors
///
/// [`Failure`] if a file cannot be used, or the output not be written.
pub(crate) fn show_dump(mut dump: MachineDump, how: &OfDump<'_>) -> Result<(), Failure> {
    let files = GuestFiles::open(how.symbols)?;
    let frame_pointers = FramePointerRows { is_trusted: how.trust_fp };
    let mut walks = GuestWalks::new(&files, frame_pointers, how.max_frames);
    let (mut troubles, mut cpus) = (BTreeSet::new(), Vec::new());
    for (number, state) in (0..).zip(&dump.cpus) {
        let stack = walks.walk(state, &mut dump.ram);
        cpus.push(VcpuReport::new(number, state, stack, &files, &mut troubles));
    }
    let report = GuestReport::new(cpus, walks.warnings(), &troubles);
    print(&report, how.json)?;
    check(&report, how.fail_incomplete)
}

/// How the dump of a machine is to be looked at.
pub(crate) struct OfDump<'a> {
    pub(crate) symbols: &'a [SymbolFile],
    pub(crate) trust_fp: bool,
    pub(crate) max_frames: u32,
    pub(crate) json: bool,
    pub(crate) fail_incomplete: bool,
}

/// Prints what was found, as text or JSON.
fn print(report: &GuestReport, json: bool) -> Result<(), Failure> {
    let mut out = coloured::stdout();
    let written = if json {
        let written = serde_json::to_writer_pretty(&mut out, report).map_err(io::Error::from);
        written.and_then(|()| writeln!(out))
    } else {
        report.write(&mut out)
    };
    written.and_then(|()| out.flush()).map_err(Failure::output)?;
    if !json {
        warn(&report.warnings);
    }
    Ok(())
}

fn check(report: &GuestReport, fail_incomplete: bool) -> Result<(), Failure> {
    if fail_incomplete {
        Ok(Incomplete::check(report.vcpus.iter().flat_map(VcpuReport::ends))?)
    } else {
        Ok(())
    }
}

/// Prints a profile.
fn sample(mut guest: Guest<'_>, samples: u64, args: &Args) -> Result<(), Failure> {
    let pause = Duration::from_secs(1).checked_div(args.hz).unwrap_or_default();
    let mut folded = Folded::default();
    let mut taken = 0_u64;
    let mut due = Instant::now();
    let mut end = None;
    while taken < samples {
        sleep(due.saturating_duration_since(Instant::now()));
        // What comes late is not made up for: that would be a burst.
        due = Instant::now().max(due).checked_add(pause).unwrap_or(due);
        match guest.look() {
            Ok(vcpus) => vcpus.iter().for_each(|vcpu| folded.add(vcpu)),
            // What there is of a guest that has ended is not thrown away.
            Err(GuestError::Closed) if taken > 0 => {
                let taken = counted(taken, "sample", "samples");
                end = Some(format!("the guest has ended after {taken}"));
                break;
            }
            Err(error) => return Err(error.into()),
        }
        taken = taken.saturating_add(1);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    folded.write(&mut out).and_then(|()| out.flush()).map_err(Failure::output)?;
    let warnings: Vec<_> = guest.warnings().into_iter().chain(end).collect();
    warn(&warnings);
    guest.print_stats(args);
    Ok(())
}

/// Writes warnings to standard error.
pub(crate) fn warn(warnings: &[String]) {
    let mut err = io::stderr().lock();
    for warning in warnings {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(err, "unwind: {warning}");
    }
}
