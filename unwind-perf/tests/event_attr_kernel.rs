//! The verdict on attrs against that of this machine's kernel, attr by attr.
//!
//! `UNWIND_ATTRS` says how many attrs (20,000 unless set), `UNWIND_ATTR_SEED` which.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::{env, fs, thread};

use unwind_perf::event_attr::{AttrError, Caller, EventAttr, KernelVersion, Pmu};
use unwind_perf::record::Endian;

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("is a number"))
}

fn system(name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).expect("perf is there");
    text.trim().parse::<i64>().expect("is a number").try_into().unwrap_or(0)
}

/// The third number, which Debian has not in the name of a release but in the version:
/// `#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-08-04)`.
fn patch() -> Option<u16> {
    let version = fs::read_to_string("/proc/sys/kernel/version").ok()?;
    let (_, version) = version.split_once("Debian ")?;
    let number = version.split(['.', '-']).nth(2)?;
    number.parse().ok()
}

fn kernel() -> KernelVersion {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let [major, minor] = [(); 2].map(|()| numbers.next().unwrap());
    KernelVersion::new(major, minor, patch().or(numbers.next()).unwrap_or(0))
}

/// What the kernel says: zero, or the number of an error.
fn opened(bytes: &[u8]) -> i32 {
    // SAFETY: the kernel copies at most as many bytes as `size` in them says, and a page
    // at most; `bytes` is a page long. The descriptor is closed at once.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, bytes.as_ptr(), 0, -1, -1, 0) };
    if fd < 0 {
        return std::io::Error::last_os_error().raw_os_error().unwrap();
    }
    // SAFETY: it was opened above, and nothing else owns it.
    unsafe { libc::close(i32::try_from(fd).unwrap()) };
    0
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Few bits, anywhere below `bits`.
    fn bits(&mut self, bits: u64) -> u64 {
        (0..self.below(5)).fold(0, |all, _| all | 1 << self.below(bits))
    }

    /// The same, in one of `rare` below `more`.
    fn rare_bits(&mut self, bits: u64, more: u64, rare: u64) -> u64 {
        let bits = if self.one_in(rare) { more } else { bits };
        self.bits(bits)
    }

    fn max_stack(&mut self) -> u64 {
        let end = if self.one_in(2) { 128 } else { 400 };
        self.below(end)
    }
}

/// An attr of the size of a page: mostly one that is fine but for some edits.
fn attr(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut put = |at: usize, len: usize, value: u64| {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    let sizes = [64, 72, 80, 96, 104, 112, 120, 128, 136, 144];
    let size = match random.below(12) {
        0 => random.below(4100),
        1 => 0,
        _ => sizes[random.below(10) as usize],
    };
    put(0, 4, if random.one_in(80) { 99 } else { 1 });
    put(4, 4, size);
    put(8, 8, if random.one_in(40) { random.next() } else { random.below(9) });
    let period = match random.below(6) {
        0 => 0,
        1 => random.next(),
        2 => random.below(200_000),
        _ => 1_000_000,
    };
    put(16, 8, period);
    let known = if random.one_in(10) { 64 } else { 25 };
    let chain = u64::from(random.one_in(3)) << 5;
    put(24, 8, random.bits(known) | chain);
    put(32, 8, if random.one_in(3) { random.bits(7) } else { 0 });
    let known = if random.one_in(10) { 64 } else { 40 };
    // Disabled: none is to count, interrupt or signal here.
    let mut flags = 1 | random.bits(known);
    if random.one_in(2) {
        flags |= 1 << 5;
    }
    if random.one_in(4) {
        flags |= 1 << 36 | 1 << 37 | 1 << 1;
    }
    put(40, 8, flags);
    put(48, 4, random.next());
    if random.one_in(2) {
        put(72, 8, random.bits(22));
        put(80, 8, random.rare_bits(12, 64, 3) | random.below(2));
        put(88, 4, if random.one_in(3) { random.below(70_000) } else { random.below(9000) * 8 });
        put(92, 4, random.below(13));
    }
    if random.one_in(2) {
        put(96, 8, random.rare_bits(12, 64, 3) | random.below(2));
        put(108, 2, random.max_stack());
        put(110, 2, u64::from(random.one_in(20)));
    }
    if random.one_in(6) {
        put(112, 4, random.below(3) * 64);
        put(116, 4, random.rare_bits(3, 32, 4));
    }
    if random.one_in(6) {
        put(120 + random.below(40) as usize, 1, 1);
    }
    bytes
}

#[derive(Default)]
struct Verdicts {
    same: BTreeMap<i32, u64>,
    /// Attrs of events that no software PMU has: what the PMU says of them comes
    /// before or after the rest.
    left_out: u64,
    /// By our answer and the kernel's: how many, and the first.
    differ: BTreeMap<(String, i32), (u64, String)>,
}

/// Whether some software PMU has the event.
fn is_software(attr: &EventAttr) -> bool {
    // Not the placeholder, the output of BPF programs and switches between groups, which
    // come and go with versions.
    attr.kind == 1 && attr.config <= 8
}

fn compare(caller: Caller, count: u64, seed: u64) -> Verdicts {
    let mut random = Random(seed);
    let mut verdicts = Verdicts::default();
    let kernel = kernel();
    for _ in 0..count {
        let bytes = attr(&mut random);
        let ours = EventAttr::decode(&bytes, Endian::Little, kernel);
        let checked =
            ours.and_then(|attr| attr.check(kernel, Pmu::SOFTWARE, caller, None).map(|_| attr));
        let theirs = opened(&bytes);
        let number = |error: &AttrError| error.errno().number();
        if ours.is_ok_and(|attr| !is_software(&attr)) {
            verdicts.left_out += 1;
        } else if checked.as_ref().err().map_or(0, number) == theirs {
            *verdicts.same.entry(theirs).or_default() += 1;
        } else {
            let answer = checked.map_or_else(|error| error.to_string(), |_| "opened".into());
            let first = || (0, format!("{ours:x?}"));
            verdicts.differ.entry((answer, theirs)).or_insert_with(first).0 += 1;
        }
    }
    verdicts
}

fn check(name: &str, caller: Caller) -> Option<Verdicts> {
    let mut first = vec![0; 4096];
    first[..8].copy_from_slice(&[1, 0, 0, 0, 64, 0, 0, 0]);
    first[40] = 1 | 1 << 5;
    let verdict = opened(&first);
    if verdict != 0 {
        test_support::skip(&format!("{name}: this machine opens no event at all ({verdict})"));
        return None;
    }
    let count = setting("UNWIND_ATTRS", 20_000);
    let verdicts = compare(caller, count, setting("UNWIND_ATTR_SEED", 1).wrapping_mul(2) + 1);
    let Verdicts { same, left_out, differ } = &verdicts;
    println!("{name}: {count} attrs, the same by errno {same:?}, left out {left_out}");
    assert!(differ.is_empty(), "{name}: our answer, the kernel's: {differ:#?}");
    assert!(*left_out * 5 < count, "{name}: {left_out} of {count} are left out");
    for errno in [0, libc::EINVAL, libc::E2BIG, libc::EOPNOTSUPP] {
        assert!(same.get(&errno).is_some_and(|&seen| seen > count / 2000), "{name}: {errno}");
    }
    Some(verdicts)
}

fn caller(is_privileged: bool) -> Caller {
    let frequency = system("perf_event_max_sample_rate");
    let max_stack = system("perf_event_max_stack").try_into().unwrap();
    let mut caller = if is_privileged { Caller::PRIVILEGED } else { Caller::USER };
    caller.may_see_kernel |= system("perf_event_paranoid") < 2;
    caller.limits(frequency, max_stack)
}

#[test]
fn g11_the_kernel_says_the_same_of_attrs_to_a_privileged_caller() {
    // SAFETY: asks for the number of a user.
    if unsafe { libc::geteuid() } != 0 {
        return test_support::skip("only root is privileged");
    }
    if let Some(verdicts) = check("privileged", caller(true)) {
        assert!(verdicts.same.contains_key(&libc::EOVERFLOW), "no call chain was too long");
    }
}

#[test]
fn g11_the_kernel_says_the_same_of_attrs_to_a_user() {
    let user = thread::spawn(|| {
        // SAFETY: changes the user of this thread alone, as the bare system call does, which
        // takes its rights. The thread ends after that.
        if unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) } != 0 {
            test_support::skip("cannot become another user");
            return None;
        }
        check("user", caller(false))
    });
    if let Some(verdicts) = user.join().unwrap() {
        assert!(
            verdicts.same.contains_key(&libc::EACCES),
            "nothing was refused for want of rights"
        );
    }
}
