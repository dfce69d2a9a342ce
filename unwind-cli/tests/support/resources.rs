//! What a run of the command costs: processor time, memory, output. And the
//! rule for readers of bytes from outside: four times the input, four times the cost.
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{Read, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// How long one run may take by the clock before it is killed, which is a
/// failure. Far longer than any needs, also on a machine that is busy.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// How much address space one run may have, in KiB: what asks for more is
/// aborted, before it harms the machine.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;

/// What is too small to be measured: runs that cost less than this count as
/// equal.
const TIME_FLOOR: Duration = Duration::from_millis(150);
const MEMORY_FLOOR: u64 = 4 << 20;
const OUTPUT_FLOOR: u64 = 64 << 10;

/// One run of the command.
#[derive(Debug)]
pub struct Run {
    command: Command,
    /// What it reads from its standard input.
    stdin: Option<Vec<u8>>,
    /// How many bytes it is given to read, by whatever way.
    input: u64,
    /// The file that it writes, which counts as output.
    written: Option<PathBuf>,
    /// What has to live meanwhile: a process that is looked at, a socket.
    _held: Option<Box<dyn Any>>,
}

impl Run {
    /// The command with these arguments, which read `input` bytes.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, input: usize) -> Self {
        let mut command = limited();
        command.args(arguments);
        let input = u64::try_from(input).unwrap();
        Self { command, stdin: None, input, written: None, _held: None }
    }

    /// Writes `bytes` to `path` and runs the command with `arguments`, in which
    /// `FILE` stands for the path.
    pub fn of_file(path: &Path, bytes: &[u8], arguments: &[&str]) -> Self {
        fs::write(path, bytes).unwrap();
        let file = path.to_str().unwrap();
        let arguments = arguments.iter().map(|&word| if word == "FILE" { file } else { word });
        Self::new(arguments, bytes.len())
    }

    /// Writes these bytes to its standard input.
    pub fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(bytes);
        self
    }

    /// Counts what it writes to a file as output.
    pub fn writing(mut self, file: PathBuf) -> Self {
        let _ = fs::remove_file(&file);
        self.written = Some(file);
        self
    }

    /// Keeps something until the run is over.
    pub fn holding(mut self, held: impl Any) -> Self {
        self._held = Some(Box::new(held));
        self
    }

    /// Runs it.
    pub fn measure(self) -> Cost {
        measure(self, TIME_LIMIT)
    }

    /// Runs it with another limit of time.
    pub fn measure_within(self, limit: Duration) -> Cost {
        measure(self, limit)
    }
}

/// The command, by a shell that bounds its address space and is replaced by it.
fn limited() -> Command {
    let script = format!("ulimit -c 0; ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_unwind")]);
    command
}

/// What one run cost.
#[derive(Clone, Debug)]
pub struct Cost {
    /// How many bytes it was given.
    pub input: u64,
    /// User and system time of all its threads.
    pub cpu: Duration,
    /// By the clock.
    pub wall: Duration,
    /// The most memory that was resident, in bytes. Where it is less than the test itself
    /// had, it is what was seen in looks a millisecond apart.
    pub peak: u64,
    /// How many bytes it wrote to standard output, standard error and a file.
    pub output: u64,
    pub status: ExitStatus,
    /// It was killed since it took too long.
    pub too_long: bool,
    /// The beginning of its standard output and of its standard error.
    pub stdout: String,
    pub stderr: String,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.status.code().map_or("killed".into(), |code| format!("rc {code}"));
        write!(
            f,
            "{:>9} KiB in  {:>7.2} s  {:>7.1} MB  {:>9} KiB out  {code}",
            self.input >> 10,
            self.cpu.as_secs_f64(),
            megabytes(self.peak),
            self.output >> 10,
        )
    }
}

fn megabytes(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0
}

fn measure(run: Run, limit: Duration) -> Cost {
    let Run { mut command, stdin, input, written, _held } = run;
    let input_end = if stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    let started = Instant::now();
    let mut child =
        command.stdin(input_end).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = drain(child.stdout.take().unwrap());
    let stderr = drain(child.stderr.take().unwrap());
    if let (Some(mut pipe), Some(bytes)) = (child.stdin.take(), stdin) {
        // A command that has seen enough closes the pipe.
        thread::spawn(move || drop(pipe.write_all(&bytes)));
    }
    let (status, usage, seen, too_long) = wait(&mut child, started, limit);
    let wall = started.elapsed();
    let (stdout_len, stdout) = stdout.join().unwrap();
    let (stderr_len, stderr) = stderr.join().unwrap();
    // The kernel counts the most memory that the starting process ever had, too, and that by counters of which each
    // CPU has a part: if that may be it, what was seen of the command while it ran has to do.
    const PARTS: u64 = 4 << 10;
    let whole = u64::try_from(usage.ru_maxrss).unwrap();
    let of_tests = most_memory("self").unwrap_or(0) + PARTS;
    let kib = if whole > of_tests { whole } else { seen };
    let cpu = duration(usage.ru_utime) + duration(usage.ru_stime);
    let written = written.map_or(0, |file| fs::metadata(file).map_or(0, |file| file.len()));
    let (peak, output) = (kib << 10, stdout_len + stderr_len + written);
    Cost { input, cpu, wall, peak, output, status, too_long, stdout, stderr }
}

/// Reads a pipe to its end. Returns how many bytes came, and the first of them.
fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<(u64, String)> {
    const KEPT: usize = 16 << 10;
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        let (mut len, mut first) = (0, Vec::new());
        loop {
            let read = pipe.read(&mut buffer).unwrap_or(0);
            if read == 0 {
                return (len, String::from_utf8_lossy(&first).into_owned());
            }
            len += u64::try_from(read).unwrap();
            let room = KEPT.saturating_sub(first.len()).min(read);
            first.extend_from_slice(&buffer[..room]);
        }
    })
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap())
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap())
}

/// The most memory that a running process has had resident, in KiB.
fn most_memory(process: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Waits for the end of a command, or makes it end. Returns also the most memory that it
/// was seen to have, in KiB.
fn wait(
    child: &mut Child,
    started: Instant,
    limit: Duration,
) -> (ExitStatus, libc::rusage, u64, bool) {
    let id = libc::pid_t::try_from(child.id()).unwrap();
    let (mut too_long, mut seen) = (false, 0);
    loop {
        seen = most_memory(&id.to_string()).unwrap_or(0).max(seen);
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both places are valid for writes of their types during the call.
        let waited = unsafe { libc::wait4(id, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        assert!(waited >= 0, "{}", std::io::Error::last_os_error());
        if waited == id {
            // SAFETY: it is numbers, all zero before the call, and the call has filled them in.
            return (ExitStatus::from_raw(status), unsafe { usage.assume_init() }, seen, too_long);
        }
        if started.elapsed() > limit && !too_long {
            too_long = true;
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a reader may cost for its input. The command is built without
/// optimisation in tests, which makes it some ten times slower.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Processor time for each MiB of input.
    pub time: Duration,
    /// Memory, in bytes for each byte of input.
    pub memory: u64,
    /// Output, in bytes for each byte of input.
    pub output: u64,
}

impl Bounds {
    /// For most readers.
    pub const USUAL: Self = Self { time: Duration::from_secs(4), memory: 16, output: 16 };
}

/// What any run may cost: the program itself, and the files of this machine that
/// a construction refers to.
const FIXED: Bounds = Bounds { time: Duration::from_secs(3), memory: 48 << 20, output: 1 << 20 };

/// One run at a time, so that runs do not make each other's figures worse.
static MEASURING: Mutex<()> = Mutex::new(());

/// Runs `reader` on a construction of one and four times some size, and
/// prints a line for each.
///
/// Fails if time, memory or output grow faster than the input by more than a
/// logarithm and what may be noise, if one is above its bounds, or if a run has
/// an end that is none of the documented ones.
pub fn stays_linear(
    reader: &str,
    construction: &str,
    bounds: Bounds,
    mut build: impl FnMut(usize) -> Run,
) {
    const SIZES: [usize; 2] = [1, 4];
    /// Other work on the machine makes a run longer, and a look may miss the most memory that a run had:
    /// of some runs the least time and the most memory are right.
    const ATTEMPTS: usize = 3;
    let alone = MEASURING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut run = |times| measure_within_bounds(reader, construction, bounds, times, build(times));
    let mut costs = SIZES.map(&mut run);
    let name = format!("{reader}, {construction}");
    let mut growth = grow_with_the_input(&name, &costs);
    for _ in 1..ATTEMPTS {
        if growth.is_ok() {
            break;
        }
        for (cost, again) in costs.iter_mut().zip(SIZES.map(&mut run)) {
            (cost.cpu, cost.peak) = (cost.cpu.min(again.cpu), cost.peak.max(again.peak));
        }
        growth = grow_with_the_input(&name, &costs);
    }
    drop(alone);
    growth.unwrap_or_else(|grown| panic!("{grown}"));
}

/// Runs it, and checks its end and each figure by itself.
fn measure_within_bounds(
    reader: &str,
    construction: &str,
    bounds: Bounds,
    times: usize,
    run: Run,
) -> Cost {
    let cost = run.measure();
    println!("{reader:<24} {construction:<34} {times}x {cost}");
    assert!(
        !cost.too_long && matches!(cost.status.code(), Some(0..=8)),
        "{reader}, {construction}, {times}x: {:?} after {:?}: {}",
        cost.status,
        cost.wall,
        cost.stderr
    );
    let mib = u32::try_from(cost.input >> 20).unwrap() + 1;
    let name = format!("{reader}, {construction}, {times}x");
    let allowed = FIXED.time + bounds.time * mib;
    assert!(cost.cpu <= allowed, "{name}: {:?} of time, {allowed:?} are allowed", cost.cpu);
    let allowed = FIXED.memory + bounds.memory * cost.input;
    assert!(cost.peak <= allowed, "{name}: {} bytes of memory of {allowed}", cost.peak);
    let allowed = FIXED.output + bounds.output * cost.input;
    assert!(cost.output <= allowed, "{name}: {} bytes of output of {allowed}", cost.output);
    cost
}

/// Compares the runs of the smallest and the largest input.
fn grow_with_the_input(name: &str, [first, last]: &[Cost; 2]) -> Result<(), String> {
    assert!(last.input >= 3 * first.input, "the construction does not grow");
    // The same work takes up to half as long again on a machine that does other work.
    let time = |cost: &Cost| u64::try_from(cost.cpu.max(TIME_FLOOR).as_micros()).unwrap();
    grows_with_the_input(&format!("{name}: time in us"), first, last, |cost| {
        (time(cost), time(first) * last.input / (2 * first.input.max(1)))
    })?;
    grows_with_the_input(&format!("{name}: memory"), first, last, |cost| {
        (cost.peak.max(MEMORY_FLOOR), MEMORY_FLOOR)
    })?;
    grows_with_the_input(&format!("{name}: output"), first, last, |cost| {
        (cost.output.max(OUTPUT_FLOOR), 0)
    })
}

/// `of` gives a figure of a run, and how much of growth is nothing.
fn grows_with_the_input(
    name: &str,
    first: &Cost,
    last: &Cost,
    of: impl Fn(&Cost) -> (u64, u64),
) -> Result<(), String> {
    let ((before, slack), (after, _)) = (of(first), of(last));
    // Half as much again, for the logarithm and for noise. What grows with the
    // square of the input is far above it: 4 times as much as this allows.
    let ratio = last.input * 3 / 2;
    let allowed = before.saturating_mul(ratio) / first.input.max(1) + slack;
    let grown = format!("{name}: from {before} to {after}, {allowed} would be in proportion");
    if after <= allowed { Ok(()) } else { Err(grown) }
}

/// A file of the test's own directory.
pub fn input_file(test: &str) -> PathBuf {
    super::scratch(test).join("input")
}
