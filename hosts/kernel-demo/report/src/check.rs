//! Everything that must hold of every sample.

use std::collections::BTreeMap;

use unwind_perf::merge::Unmatched;

use crate::account::Account;
use crate::calls::{Call, Calls};
use crate::chain::Parts;
use crate::image::{Function, Image, Images};
use crate::known;
use crate::stream::{Events, SampleOutcome, WholeSample};
use crate::tasks::Tasks;

/// The most stack that parts of the unwinder may take, in bytes. A walk is one
/// with nothing cached; an NMI is all that is on its stack.
const MAX_STACK: &[(&str, u64)] = &[
    ("stack: request", 256),
    ("stack: walk by tables", 1328),
    ("stack: walk by frame pointers", 1360),
    ("stack: walk of 32-bit code", 1280),
    ("stack: nmi in all", 4096),
];

/// Checks samples and counts what it finds.
pub(crate) struct Checker<'i> {
    images: &'i Images,
    tasks: &'i Tasks,
    kernel_calls: Calls<'i>,
    program_calls: BTreeMap<String, Calls<'i>>,
    pub(crate) faults: Vec<String>,
    user_chains: u64,
    kernel_chains: u64,
    call_sites: u64,
    entries: u64,
    frameless: u64,
    in_sigreturn: u64,
    /// User chains that are right for a program whose name was lost.
    unnamed: u64,
}

impl<'i> Checker<'i> {
    pub(crate) fn new(images: &'i Images, tasks: &'i Tasks) -> Self {
        let program_calls = known::PROGRAMS
            .iter()
            .filter_map(|known| Some((known.program.to_owned(), images.program(known.program)?)))
            .map(|(name, image)| (name, Calls::new(image)))
            .collect();
        Self {
            images,
            tasks,
            kernel_calls: Calls::new(&images.kernel),
            program_calls,
            faults: Vec::new(),
            user_chains: 0,
            kernel_chains: 0,
            call_sites: 0,
            entries: 0,
            frameless: 0,
            in_sigreturn: 0,
            unnamed: 0,
        }
    }

    /// Checks one sample.
    pub(crate) fn check(&mut self, sample: &WholeSample, events: &Events) {
        if let Err(fault) = self.try_check(sample, events) {
            self.faults.push(format!("{fault}: {}", self.folded(sample)));
        }
    }

    fn try_check(&mut self, sample: &WholeSample, events: &Events) -> Result<(), String> {
        let parts = Self::parts(sample).ok_or("a chain with unknown marks")?;
        self.check_entry(sample, events)?;
        if sample.in_user != parts.kernel.is_empty() {
            return Err("kernel frames and the CPU mode disagree".to_owned());
        }
        if let Some(first) = parts.kernel.first() {
            if *first != sample.ip {
                return Err("the first kernel frame is not the sampled pc".to_owned());
            }
            self.check_kernel(&parts.kernel)?;
        }
        if !parts.user.is_empty() {
            if sample.in_user && parts.user.first() != Some(&sample.ip) {
                return Err("the first user frame is not the sampled pc".to_owned());
            }
            self.check_user(sample, &parts.user)?;
        }
        Ok(())
    }

    /// A stack that came has to be of the kernel entry that the sample is of,
    /// by the kernel's own count.
    fn check_entry(&mut self, sample: &WholeSample, events: &Events) -> Result<(), String> {
        let Some(cookie) = sample.cookie.filter(|_| sample.end == SampleOutcome::Merged) else {
            return Ok(());
        };
        let stack = events.stack(cookie).map_or(0, |stack| stack.entry);
        if sample.entry == 0 || stack == 0 {
            return Ok(());
        }
        self.entries += 1;
        if sample.entry == stack {
            Ok(())
        } else {
            Err(format!("a stack of entry {stack} for a sample of entry {}", sample.entry))
        }
    }

    fn check_user(&mut self, sample: &WholeSample, user: &[u64]) -> Result<(), String> {
        // A stack that was walked in the NMI may be cut where a page is absent.
        let is_begin = sample.end == SampleOutcome::Inline;
        let name = self.tasks.at(sample.tid, sample.time).ok_or("user frames of a thread");
        if is_begin && name.is_ok_and(|name| self.is_in_sigreturn(name, user)) {
            self.in_sigreturn += 1;
            return Ok(());
        }
        let mut checked =
            name.map_err(str::to_owned).and_then(|name| self.check_program(name, user, is_begin));
        if checked.is_err() && self.tasks.is_in_doubt(sample.tid, sample.time) {
            // It must be right for some program then.
            let mut programs = known::PROGRAMS.iter();
            let other =
                programs.find_map(|known| self.check_program(known.program, user, is_begin).ok());
            self.unnamed += u64::from(other.is_some());
            checked = other.map_or(checked, Ok);
        }
        self.call_sites += checked?;
        self.user_chains += 1;
        Ok(())
    }

    /// Whether the task is in the call that ends a handler. Its user code is at the end of
    /// the trampoline, which no walk can know as one, and will not continue there.
    fn is_in_sigreturn(&self, name: &str, user: &[u64]) -> bool {
        let (Some(image), Some(&pc)) = (self.images.program(name), user.first()) else {
            return false;
        };
        let before = image.function(pc.wrapping_sub(1));
        image.function(pc).is_none() && before.is_some_and(|found| found.name == "trampoline")
    }

    /// Checks a stack as one of a program; returns how many calls there are.
    fn check_program(&self, name: &str, user: &[u64], is_begin: bool) -> Result<u64, String> {
        let image = self.images.program(name).ok_or("user frames of an unknown program")?;
        let functions = functions(image, user)?;
        let names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
        if !known::is_known(name, &names, is_begin) {
            return Err(format!("{name} has no such chain"));
        }
        let calls = self.program_calls.get(name).ok_or("an unknown program")?;
        let mut count = 0;
        for (at, pair) in functions.windows(2).enumerate() {
            let [callee, caller] = pair else { continue };
            // The kernel calls handlers, and interrupts what is below the
            // trampoline.
            if caller.name == "trampoline" || callee.name == "trampoline" {
                continue;
            }
            let ra = user.get(at + 1).copied().unwrap_or(0);
            let call = calls.before(ra).ok_or(format!("{ra:#x} does not follow a call"))?;
            if call != Call::To(callee.start) {
                return Err(format!("the call before {ra:#x} is not to {}", callee.name));
            }
            count += 1;
        }
        Ok(count)
    }

    fn check_kernel(&mut self, kernel: &[u64]) -> Result<(), String> {
        let functions = functions(&self.images.kernel, kernel)?;
        // After an entry into the kernel comes the code that it interrupted.
        let mut interrupted = true;
        for (at, pair) in functions.windows(2).enumerate() {
            let [callee, caller] = pair else { continue };
            let was_interrupted = core::mem::replace(&mut interrupted, false);
            if is_entry(callee) {
                interrupted = true;
                continue;
            }
            let ra = kernel.get(at + 1).copied().unwrap_or(0);
            // Sampled at the end of the first switch to a task.
            if is_planted(caller, ra) && callee.name == "switch_stacks" {
                continue;
            }
            let call = self.kernel_calls.before(ra);
            let call = call.ok_or(format!("{ra:#x} in {} does not follow a call", caller.name))?;
            let Call::To(target) = call else { continue };
            self.call_sites += 1;
            if self.kernel_calls.leads_to(target, callee) {
                continue;
            }
            // A function of the prebuilt core that calls nothing keeps no frame
            // pointer: its caller is not found, the caller's caller is.
            if was_interrupted && !self.kernel_calls.keeps_frame_pointer(callee) {
                self.frameless += 1;
                continue;
            }
            return Err(format!("the call before {ra:#x} does not lead to {}", callee.name));
        }
        self.kernel_chains += 1;
        let outermost = functions.last().ok_or("no function")?;
        let has_no_frame = functions.len() == 1 && is_frameless(outermost)
            || kernel.last().is_some_and(|&addr| is_planted(outermost, addr));
        if is_entry(outermost) || is_thread(outermost) || has_no_frame {
            Ok(())
        } else {
            Err(format!("the kernel stack ends in {}", outermost.name))
        }
    }

    /// Compares what the kernel counted with what came out of it.
    pub(crate) fn compare(&mut self, profiler: &Events, tracer: &Events, account: &Account) {
        let lost = account.get("records: lost");
        let count = |of: &Events| of.samples.len() as u64;
        let mut equal = |what: &str, left: u64, right: u64| {
            if left != right {
                self.faults.push(format!("{what}: {left} and {right}"));
            }
        };
        let get = |name: &str| account.get(name);
        let taken = get("samples: taken");
        let places = get("samples: in user code")
            + get("samples: in the kernel")
            + get("samples: in threads");
        equal("samples by place", taken, places);
        let outcomes = ["queued", "pending", "executed", "refused"]
            .map(|outcome| get(&format!("requests: {outcome}")));
        equal("samples by outcome of the request", taken, outcomes.iter().sum());
        equal("samples by how they end", profiler.counts.samples, ends(profiler));
        equal("traced calls by how they end", tracer.counts.samples, ends(tracer));
        let delivered = get("deliveries: matched") + get("deliveries: truncated");
        if lost == 0 {
            equal("samples taken and recorded", taken, count(profiler));
            equal("calls traced and recorded", get("traced calls: traced"), count(tracer));
            let refused = get("requests: refused");
            equal("requests refused and samples without a cookie", refused, profiler.counts.inline);
            equal("stacks", delivered, profiler.counts.records + tracer.counts.records);
            // Each client that was told that there is no stack had asked.
            let told = get("deliveries: task gone") + get("deliveries: exec");
            let unmatched = unmatched_cookies(profiler) + unmatched_cookies(tracer);
            equal("deliveries without a stack, and cookies without one", told, unmatched);
        }
        // What the branch unit recorded is what the walks found later.
        let compared = get("lbr: compared");
        equal("records that agree", compared, get("lbr: agree") + get("lbr: of signals"));
        equal("memory for records", get("task data: given"), get("task data: back"));
        equal("parts traced, and traced whole", get("aux: parts"), get("aux: whole"));
        equal("branches traced outside of the parts", get("aux: outside"), 0);
        equal("walks that are not as the shadow stack", get("shadow: other"), 0);
        equal("returns that are not as the shadow stack", get("shadow: wrong returns"), 0);
        equal("stacks lost", get("deliveries: lost"), 0);
        equal("stacks truncated", get("deliveries: truncated"), 0);
        equal("frames of memory left", get("pages: frames left"), 0);
        let mut above_zero = |what: &str| {
            if get(what) == 0 {
                self.faults.push(format!("{what}: none"));
            }
        };
        // What did not happen was not shown.
        for what in [
            "samples: in user code",
            "samples: in the kernel",
            "samples: within the unwinder",
            "requests: pending",
            "deliveries: task gone",
            "lbr: agree",
            "lbr: full",
            "aux: parts",
            "shadow: as the walk",
            "pages: evicted",
        ] {
            above_zero(what);
        }
        self.check_stack(account);
    }

    /// The stack budget.
    fn check_stack(&mut self, account: &Account) {
        for &(what, most) in MAX_STACK {
            let used = account.get(what);
            if used == 0 || used > most {
                self.faults.push(format!("{what}: {used} bytes, at most {most} are allowed"));
            }
        }
    }

    /// What was checked.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} user chains ({} of lost names), {} kernel chains, {} call sites, {} entries; \
             {} frameless leaves, {} in sigreturn",
            self.user_chains,
            self.unnamed,
            self.kernel_chains,
            self.call_sites,
            self.entries,
            self.frameless,
            self.in_sigreturn
        )
    }

    /// A sample as one line: program, then functions from the outermost on,
    /// with the boundary between user and kernel code marked.
    pub(crate) fn folded(&self, sample: &WholeSample) -> String {
        let name = self.tasks.at(sample.tid, sample.time).unwrap_or("thread");
        let parts = Self::parts(sample).unwrap_or_default();
        let mut line = vec![name.to_owned()];
        let image = self.images.program(name);
        line.extend(labels(image, &parts.user));
        match sample.end {
            SampleOutcome::Unmatched(reason) => line.push(format!("[no user stack: {reason:?}]")),
            SampleOutcome::Inline if parts.has_user => line.push("[walked at once]".to_owned()),
            _ => {}
        }
        if !parts.kernel.is_empty() {
            line.push("|".to_owned());
        }
        line.extend(labels(Some(&self.images.kernel), &parts.kernel));
        line.join(" ")
    }

    fn parts(sample: &WholeSample) -> Option<Parts> {
        let deferred = matches!(sample.end, SampleOutcome::Unmatched(_));
        Parts::of(&sample.chain, deferred)
    }
}

/// The sum of all ways in which samples end.
pub(crate) fn ends(events: &Events) -> u64 {
    events.counts.inline + events.counts.merged + events.counts.unmatched()
}

/// How many different cookies ended without a stack.
pub(crate) fn unmatched_cookies(events: &Events) -> u64 {
    let mut cookies: Vec<u64> = events
        .samples
        .iter()
        .filter(|sample| matches!(sample.end, SampleOutcome::Unmatched(reason) if reason != Unmatched::Lost))
        .filter_map(|sample| sample.cookie)
        .collect();
    cookies.sort_unstable();
    cookies.dedup();
    cookies.len() as u64
}

/// The functions of a chain: of the sampled pc and of interrupted ones as they
/// are, of return addresses one byte back.
fn functions<'f>(image: &'f Image, chain: &[u64]) -> Result<Vec<&'f Function>, String> {
    let found = chain.iter().zip(find_functions(image, chain));
    found.map(|(addr, found)| found.ok_or(format!("{addr:#x} is in no function"))).collect()
}

fn find_functions<'f>(image: &'f Image, chain: &[u64]) -> Vec<Option<&'f Function>> {
    let mut is_exact = true;
    let find = |&addr: &u64| {
        let lookup = if is_exact { addr } else { addr.wrapping_sub(1) };
        let planted = image.function(addr).filter(|found| is_planted(found, addr));
        // A handler returns to the first byte of its trampoline.
        let found = planted.or_else(|| image.function(lookup)).or_else(|| image.function(addr));
        is_exact = found.is_some_and(|found| is_entry(found) || found.name == "trampoline");
        found
    };
    chain.iter().map(find).collect()
}

/// The names of a chain's functions, outermost first; an address for want of
/// one.
fn labels(image: Option<&Image>, chain: &[u64]) -> Vec<String> {
    let found = image.map_or_else(|| vec![None; chain.len()], |image| find_functions(image, chain));
    let label = |(addr, found): (&u64, Option<&Function>)| match found {
        Some(function) => function.name.clone(),
        None => format!("{addr:#x}"),
    };
    chain.iter().zip(found).map(label).rev().collect()
}

/// Code of entry.s through which the kernel is entered.
fn is_entry(function: &Function) -> bool {
    const ENTRY: &[&str] = &[
        "vector_stubs",
        "int80_stub",
        "syscall_stub",
        "move_to_task_stack",
        "save_registers",
        "save_rest",
        "first_return",
        "restore_registers",
        "nmi_entry",
        "nmi_at_the_first_instruction",
    ];
    ENTRY.contains(&function.name.as_str())
}

/// Where threads begin.
fn is_thread(function: &Function) -> bool {
    const THREADS: &[&str] = &["thread_runs_for_the_first_time", "kernel_main", "next_cpu_main"];
    THREADS.iter().any(|thread| function.name.ends_with(thread))
}

/// Whether `addr` is the return address that a new task's stack begins with. No
/// call is before it.
fn is_planted(function: &Function, addr: u64) -> bool {
    const PLANTED: &[&str] = &["first_run", "first_return"];
    PLANTED.contains(&function.name.as_str()) && function.start == addr
}

/// Code that is sampled before it has a frame, or after.
fn is_frameless(function: &Function) -> bool {
    const FRAMELESS: &[&str] = &["first_run", "start_user", "switch_stacks"];
    FRAMELESS.contains(&function.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_pcs_are_looked_up_as_they_are() {
        let image = Image::of_functions(&[
            ("before", 0x10, 0x20),
            ("interrupted", 0x20, 0x30),
            ("caller", 0x30, 0x40),
            ("after", 0x40, 0x50),
            ("handler", 0x50, 0x60),
            ("save_rest", 0x60, 0x70),
        ]);
        // The interrupted function is at its first byte, its call the last
        // thing in the caller.
        let chain = [0x50, 0x65, 0x20, 0x40];
        let functions = functions(&image, &chain).unwrap();
        let names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["handler", "save_rest", "interrupted", "caller"]);
        assert_eq!(labels(Some(&image), &chain), ["caller", "interrupted", "save_rest", "handler"]);
        assert_eq!(labels(None, &[0x20]), ["0x20"]);
    }

    #[test]
    fn a_new_task_returns_to_the_first_byte_of_a_function() {
        let image = Image::of_functions(&[
            ("save_rest", 0x10, 0x20),
            ("first_return", 0x20, 0x30),
            ("restore_registers", 0x30, 0x40),
            ("first_run", 0x40, 0x50),
            ("switch_stacks", 0x50, 0x60),
            ("other", 0x60, 0x70),
        ]);
        let images = Images::of_kernel(image);
        let tasks = Tasks::default();
        let mut checker = Checker::new(&images, &tasks);
        for chain in [[0x58, 0x20], [0x58, 0x40]] {
            assert_eq!(checker.check_kernel(&chain), Ok(()), "{chain:x?}");
        }
        // None of these follows a call.
        for chain in [[0x58, 0x21], [0x58, 0x41], [0x58, 0x30], [0x68, 0x40]] {
            let _ = checker.check_kernel(&chain).unwrap_err();
        }
    }
}
