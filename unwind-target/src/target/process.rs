//! A live process: all its threads held still by ptrace, and let go unharmed.
//!
//! Threads are seized, not attached to: no signal is sent, so none remains,
//! and if this program dies the kernel lets every thread continue by
//! itself. A process that was stopped before stays stopped; a system call that
//! the stop interrupts continues; a signal that arrives meanwhile is delivered
//! when the process is let go.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::input_error::InputError;
use crate::target::error::TargetError;
use crate::target::proc_text::read_text;
use crate::target::registers::UserRegisters;
use crate::target::status::Status;
use crate::target::thread_list::ThreadList;
use crate::target::tracee::{self, Report};
use crate::untrusted::plain;

/// How long all threads together may take to stop. One that sleeps where
/// signals cannot wake it, such as the parent in `vfork`, does not stop at all.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How many threads a process has at most of which it is looked first whether they run: with more,
/// to look takes as long as to stop them.
const LOOKED_AT: usize = 32;
/// How long is waited for those that sleep before those that run are stopped, too.
const ASLEEP_TIMEOUT: Duration = Duration::from_millis(1);

/// How often it is looked whether threads have stopped before a sleep between two looks:
/// most stop at once, and a sleep takes longer than that.
const EAGER_LOOKS: u32 = 32;

/// How often a thread is tried again that another one takes the place of, which
/// executes a program.
const EXEC_TRIES: u32 = 10;
/// How long a process is left alone whose threads are all gone that were found.
const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// A process whose threads are stopped for as long as this value lives.
#[derive(Debug)]
pub(crate) struct StoppedProcess {
    process: Pid,
    threads: Vec<StoppedThread>,
    /// Threads that did not stop, in order of id.
    unstoppable: Vec<i32>,
}

/// What has become of a process while it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stands.
    Held,
    /// All threads that were held have ended, and another one has taken their place:
    /// one that could not be stopped in time has executed a program.
    Replaced,
    /// It has ended.
    Ended,
    /// It was held for as long as it may be, and continues.
    LetGo {
        /// For how long it was held.
        seconds: u64,
    },
}

/// One thread of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedThread {
    pub(crate) id: Pid,
    /// The signal to pass on when it is let go, or 0.
    signal: i32,
    /// It was on its way when it was found, so it is stopped last and let go first.
    ran: bool,
    /// None if it was killed meanwhile.
    pub(crate) registers: Option<UserRegisters>,
}

impl StoppedProcess {
    /// Stops all threads of the process that has `task` as its id or as that of
    /// one of its threads.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is no such process, if it may not be traced, or if
    /// none of its threads could be stopped.
    ///
    /// Calls `still` once all that were found are stopped, before their registers are read; again
    /// if there were more.
    pub(crate) fn stop(task: i32, still: &dyn Fn()) -> Result<Self, TargetError> {
        let status = user_task(task)?;
        let mut stopped = Self {
            process: Pid::from_raw(status.process),
            threads: Vec::new(),
            unstoppable: Vec::new(),
        };
        let deadline = Instant::now().checked_add(STOP_TIMEOUT);
        loop {
            stopped.stop_all_threads(still)?;
            stopped.read_registers();
            let none = stopped.threads.is_empty() && stopped.unstoppable.is_empty();
            // One that executes another program may have replaced all of them.
            let again = none && stopped.is_there();
            if !again || deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                break;
            }
            sleep(EXEC_PAUSE);
        }
        stopped.threads.sort_unstable_by_key(|thread| thread.id);
        if !stopped.threads.is_empty() {
            return Ok(stopped);
        }
        Err(match stopped.unstoppable.first() {
            Some(_) => TargetError::Unstoppable(status.process),
            None => TargetError::Ended(status.process),
        })
    }

    /// The id of the process.
    pub(crate) const fn id(&self) -> i32 {
        self.process.as_raw()
    }

    /// The stopped threads, ascending.
    pub(crate) fn threads(&self) -> &[StoppedThread] {
        &self.threads
    }

    /// The ids of the threads that run on because they could not be stopped.
    pub(crate) fn unstoppable(&self) -> &[i32] {
        &self.unstoppable
    }

    /// What has become of it while it was held.
    pub(crate) fn fate(&self) -> Fate {
        if self.threads.iter().any(|thread| Self::registers(thread.id).is_some()) {
            Fate::Held
        } else if self.is_there() {
            Fate::Replaced
        } else {
            Fate::Ended
        }
    }

    /// The registers of a stopped thread; `None` if it was killed meanwhile.
    fn registers(thread: Pid) -> Option<UserRegisters> {
        ptrace::getregs(thread).ok().map(|regs| UserRegisters::from_ptrace(&regs))
    }

    /// Stops threads until a look at the list finds no other. All that were
    /// found before are stopped then, so no further one can come.
    fn stop_all_threads(&mut self, still: &dyn Fn()) -> Result<(), TargetError> {
        let deadline = Instant::now().checked_add(STOP_TIMEOUT);
        let mut list = ThreadList::open(self.id())?;
        let mut seen = BTreeSet::new();
        loop {
            let found = list.ids()?.into_iter().map(Pid::from_raw);
            let fresh: Vec<_> = found.filter(|&thread| seen.insert(thread)).collect();
            if fresh.is_empty() {
                return Ok(());
            }
            // All are traced before the first one stops, so that none waits for that.
            let mut waiting = self.seize_all(&fresh)?;
            let is_few = (2..=LOOKED_AT).contains(&waiting.len());
            let running: Vec<_> = waiting.extract_if(.., |id| is_few && is_running(*id)).collect();
            let interrupt = |threads: Vec<Pid>, ran| {
                let left = threads.into_iter().filter(|&id| ptrace::interrupt(id).is_ok());
                left.map(move |id| Waited { id, ran })
            };
            let mut waiting: Vec<_> = interrupt(waiting, false).collect();
            if !running.is_empty() {
                // Those that sleep lose no time while they stop.
                let soon = Instant::now().checked_add(ASLEEP_TIMEOUT);
                waiting = self.wait_for_stops(waiting, soon);
                waiting.extend(interrupt(running, true));
            }
            // All together: one that executes a program waits for the ends of all others.
            let left = self.wait_for_stops(waiting, deadline);
            self.unstoppable.extend(left.iter().map(|thread| thread.id.as_raw()));
            self.unstoppable.sort_unstable();
            // One that is not listed yet changes nothing that those which stand need.
            still();
        }
    }

    /// Begins to trace threads; returns those that have not ended.
    fn seize_all(&self, threads: &[Pid]) -> Result<Vec<Pid>, TargetError> {
        let ends = Ends::of(self.threads.iter().map(|thread| thread.id).collect());
        std::thread::scope(|scope| {
            // With one thread there is nothing to wait for.
            let others = threads.len() > 1 || !self.threads.is_empty();
            let watch = others.then(|| scope.spawn(|| ends.watch()));
            let mut seized = Vec::new();
            let result = threads.iter().try_for_each(|&thread| {
                if self.seize(thread)? {
                    seized.push(thread);
                    ends.add(thread);
                }
                Ok(())
            });
            ends.stop();
            if let Some(watch) = watch {
                watch.thread().unpark();
            }
            result.map(|()| seized)
        })
    }

    /// Reads the registers of the threads, and takes out those that ended after their stop, as
    /// they do at an exec by one that did not stop in time. It waits until their ends have been
    /// seen.
    fn read_registers(&mut self) {
        self.threads.retain_mut(|thread| {
            thread.registers = Self::registers(thread.id);
            thread.registers.is_some() || tracee::poll(thread.id) == Ok(None)
        });
    }

    /// Whether any thread is alive. One look may find the id of a thread that is
    /// to have another one, and that one still dead.
    fn is_there(&self) -> bool {
        let is_alive = |&thread: &i32| Status::read(thread).is_ok_and(|status| !status.is_dead());
        let list = || ThreadList::open(self.id())?.ids();
        (0..EXEC_TRIES).any(|_| list().is_ok_and(|all| all.iter().any(is_alive)))
    }

    /// Begins to trace a thread; `false` if it has ended.
    fn seize(&self, thread: Pid) -> Result<bool, TargetError> {
        for tries_left in (0..EXEC_TRIES).rev() {
            let errno = match ptrace::seize(thread, ptrace::Options::empty()) {
                Ok(()) => return Ok(true),
                Err(Errno::ESRCH) => return Ok(false),
                Err(errno) => errno,
            };
            match Status::read(thread.as_raw()) {
                Err(_) => return Ok(false),
                // The first thread may end before the others.
                Ok(status) if status.is_dead() => return Ok(false),
                // It was seized under the id that it had before its exec.
                Ok(status) if status.tracer == nix::unistd::gettid().as_raw() => return Ok(true),
                // An exec by another thread, which the kernel waits for, has taken
                // the id over: the thread that had it is the one that is refused.
                Ok(status) if errno == Errno::EPERM && status.tracer == 0 && tries_left > 0 => {}
                Ok(status) => return Err(self.refusal(status, errno)),
            }
        }
        Ok(false)
    }

    /// Why the kernel does not let us trace a thread.
    fn refusal(&self, status: Status, errno: Errno) -> TargetError {
        let process = self.id();
        let own = i32::try_from(std::process::id()).ok();
        if own == Some(process) {
            TargetError::OwnProcess
        } else if status.tracer != 0 {
            // It is a thread that traces.
            let tracer = Status::read(status.tracer).map_or(status.tracer, |tracer| tracer.process);
            TargetError::AlreadyTraced { process, tracer }
        } else if errno == Errno::EPERM {
            TargetError::NotPermitted { process, owner: status.user, ptrace_scope: ptrace_scope() }
        } else {
            TargetError::Trace { process, errno }
        }
    }

    /// Waits until each thread has stopped or ended, or until the deadline: returns those that have
    /// not.
    fn wait_for_stops(
        &mut self,
        mut waiting: Vec<Waited>,
        deadline: Option<Instant>,
    ) -> Vec<Waited> {
        let mut eager_looks = 0..EAGER_LOOKS;
        let mut pause = Duration::from_micros(20);
        loop {
            waiting.retain(|&Waited { id, ran }| match tracee::poll(id) {
                Ok(None) => true,
                Ok(Some(Report::Stopped { signal })) => {
                    self.threads.push(StoppedThread { id, signal, ran, registers: None });
                    false
                }
                Ok(Some(Report::Ended(_))) | Err(_) => false,
            });
            if waiting.is_empty() || deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return waiting;
            }
            if eager_looks.next().is_some() {
                yield_now();
                continue;
            }
            // One that executes a program does not stop before their ends are seen.
            self.read_registers();
            sleep(pause);
            pause = pause.saturating_mul(2).min(Duration::from_millis(2));
        }
    }
}

/// A thread that was asked to stop.
#[derive(Clone, Copy, Debug)]
struct Waited {
    id: Pid,
    /// As [`StoppedThread::ran`].
    ran: bool,
}

/// Whether a thread has something to do.
fn is_running(thread: Pid) -> bool {
    let stat = read_text(format!("/proc/{thread}/stat"));
    // Its name may hold anything but a newline.
    let state =
        stat.ok().and_then(|stat| stat.rsplit(|&byte| byte == b')').next()?.get(1).copied());
    state == Some(b'R')
}

/// The ends of traced threads, which have to be asked for while another thread
/// is being seized: an exec in one thread continues when the ends of all others
/// have been seen, and until it is done the kernel lets a seizure wait.
struct Ends {
    traced: Mutex<Vec<Pid>>,
    is_over: AtomicBool,
}

impl Ends {
    /// How often they are asked for.
    const PERIOD: Duration = Duration::from_millis(1);

    fn of(traced: Vec<Pid>) -> Self {
        Self { traced: Mutex::new(traced), is_over: AtomicBool::new(false) }
    }

    fn add(&self, thread: Pid) {
        self.traced.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    fn watch(&self) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        let ask = |thread: Pid, flags| waitid(Id::Pid(thread), flags);
        // The kernel tells of a tracee's stop whether it was asked for or not. That is
        // for the thread that traces, so what there is to tell is looked at first.
        let has_ended = |thread: Pid| match ask(thread, flags | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => ask(thread, flags).is_ok(),
            Err(errno) => errno == Errno::ECHILD,
            Ok(_) => false,
        };
        while !self.is_over.load(Ordering::Acquire) {
            let mut traced = self.traced.lock().unwrap_or_else(PoisonError::into_inner);
            traced.retain(|&thread| !has_ended(thread));
            drop(traced);
            std::thread::park_timeout(Self::PERIOD);
        }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let threads = |ran: bool| self.threads.iter().filter(move |thread| thread.ran == ran);
        for thread in threads(true).chain(threads(false)) {
            // A thread that is gone needs no more. One that could not be
            // stopped is let go by the kernel when this program ends.
            let _ = tracee::detach(thread.id, thread.signal);
        }
    }
}

/// The state of a task that runs code of a user.
///
/// # Errors
///
/// [`TargetError`] if there is no such task, if it is the kernel's own, or if its state cannot be
/// read.
pub(super) fn user_task(task: i32) -> Result<Status, TargetError> {
    let status = Status::read(task).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => TargetError::not_in_proc(task),
        _ => InputError::Read { path: format!("/proc/{task}/status").into(), error }.into(),
    })?;
    if status.is_kernel_thread { Err(TargetError::KernelThread(task)) } else { Ok(status) }
}

/// The value of `kernel.yama.ptrace_scope`, where the kernel has it.
pub(super) fn ptrace_scope() -> Option<u8> {
    let text = std::fs::read("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    plain(text.trim_ascii())?.parse().ok()
}
