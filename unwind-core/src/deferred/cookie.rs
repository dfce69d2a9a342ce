//! What ties a sample to the stack that is walked later.

use core::fmt;
use core::num::NonZeroU64;

use super::Host;
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_unless_loom};

/// One kernel entry of one task.
///
/// All samples that are taken in the same kernel entry of the same task get
/// the same cookie, and the stack that is walked on the way back to user mode
/// comes with it. No other entry, of this or of another task, has that cookie
/// while the instance lives; each [`CookieSource`] says how long that holds.
/// A sample whose cookie never arrives with a stack has lost it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Cookie(NonZeroU64);

impl Cookie {
    /// The cookie with this value; zero stands for "none" in records.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The value that goes into records: never zero.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cookie({:#x})", self.0)
    }
}

/// Where cookies come from: numbers that are fetched for tasks.
///
/// The first request of an entry, or of a block of entries, fetches a number.
/// Where an NMI or another CPU does it at the same time, one of the numbers is
/// kept and the others are never used.
pub trait CookieSource {
    /// Whether a task keeps a number for 65,536 of its kernel entries.
    ///
    /// The low 16 bits of a number are zero then, and the task counts its
    /// entries there: those in which a cookie was given out. Otherwise each of
    /// these entries has a number of its own, and that is the cookie.
    const KEPT: bool;

    /// Returns a number that this source has never returned, not zero; or
    /// `None` if there is none for this CPU.
    ///
    /// Called in any context, NMI included; so it makes no use of locks and
    /// ends after a bounded number of steps.
    fn fresh<H: Host>(&self, host: &H) -> Option<NonZeroU64>;
}

/// Cookies from serial numbers that a task takes once per 65,536 entries: the
/// default.
///
/// | bits | meaning |
/// |---|---|
/// | 0-15 | the entry, counted by the task |
/// | 16-63 | the serial number |
///
/// A request touches nothing outside the task's own cache line, but for one
/// in 65,536. Unique until 2⁴⁸ serial numbers are used up: for almost nine
/// years at a million new tasks a second that are all sampled.
#[derive(Debug)]
pub struct SerialCookies(AtomicU64);

impl SerialCookies {
    const ONE: u64 = 1 << 16;

    const_unless_loom! {
        /// A source that has given nothing out.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU64::new(Self::ONE))
        }
    }
}

impl Default for SerialCookies {
    fn default() -> Self {
        Self::new()
    }
}

impl CookieSource for SerialCookies {
    const KEPT: bool = true;

    fn fresh<H: Host>(&self, _: &H) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.fetch_add(Self::ONE, Ordering::Relaxed))
    }
}

/// Cookies from one counter for all tasks: 1, 2, 3 and so on.
///
/// Unique for 584,000 years at a million entries a second. The first request in
/// each entry writes to a cache line that all CPUs share.
#[derive(Debug)]
pub struct CounterCookies(AtomicU64);

impl CounterCookies {
    const_unless_loom! {
        /// A source that has given nothing out.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU64::new(1))
        }
    }
}

impl Default for CounterCookies {
    fn default() -> Self {
        Self::new()
    }
}

impl CookieSource for CounterCookies {
    const KEPT: bool = false;

    fn fresh<H: Host>(&self, _: &H) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Cookies in the layout of Linux: a counter for each CPU.
///
/// | bits | meaning |
/// |---|---|
/// | 0-31 | the CPU on which the entry's first request was made, plus one |
/// | 32-63 | that CPU's counter: 3, 5, 7 and so on, always odd |
///
/// Unique until a CPU's counter wraps after 2³¹ entries: after 36 minutes at a
/// million a second. There are counters
/// for the CPUs 0 to `CPUS` - 1; on others there are no cookies, and requests
/// are refused.
#[derive(Debug)]
pub struct PerCpuCookies<const CPUS: usize>([CpuCounter; CPUS]);

/// A counter in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct CpuCounter(AtomicU32);

impl<const CPUS: usize> PerCpuCookies<CPUS> {
    const FIRST: u32 = 3;

    const_unless_loom! {
        /// A source that has given nothing out.
        #[must_use]
        pub fn new() -> Self {
            Self(atomics![CpuCounter(AtomicU32::new(Self::FIRST)); CPUS])
        }
    }
}

impl<const CPUS: usize> Default for PerCpuCookies<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CPUS: usize> CookieSource for PerCpuCookies<CPUS> {
    const KEPT: bool = false;

    // A task that moves to another CPU between the two steps counts on the
    // first one's counter, and the pair is still used once only.
    fn fresh<H: Host>(&self, host: &H) -> Option<NonZeroU64> {
        let cpu = host.cpu();
        let counter = self.0.get(usize::try_from(cpu).ok()?)?;
        let count = counter.0.fetch_add(2, Ordering::Relaxed);
        NonZeroU64::new((u64::from(count) << 32) | u64::from(cpu.checked_add(1)?))
    }
}

/// Cookies that are the time of the entry's first request, by
/// [`Host::clock`].
///
/// Cookies rise in the order in which they are made, over all tasks: of two cookies of a
/// thread the greater one is that of the later entry, whatever was lost or came late. A
/// reader may go by that (`Policy::ascending_cookies` of `unwind-perf`'s merge does).
///
/// A time that was given out already is moved on by one: a cookie is *later* than its first
/// request by as many units of the clock as requests came before it at the same time. With
/// 1,000 of them in one tick of a slow clock that is up to 999 units, so a cookie alone does
/// not say that a sample with an earlier time is of another entry.
///
/// The first request in each entry writes to a cache line that all CPUs share.
#[derive(Debug)]
pub struct ClockCookies(AtomicU64);

impl ClockCookies {
    const_unless_loom! {
        /// A source that has given nothing out.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }
}

impl Default for ClockCookies {
    fn default() -> Self {
        Self::new()
    }
}

impl CookieSource for ClockCookies {
    const KEPT: bool = false;

    // Every value given out is at most the latest, and raising the latest is
    // atomic: the request that raises it to `now`, or steps it by one, is alone.
    fn fresh<H: Host>(&self, host: &H) -> Option<NonZeroU64> {
        let now = host.clock();
        let latest = self.0.fetch_max(now, Ordering::Relaxed);
        let time =
            if latest < now { now } else { self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1) };
        NonZeroU64::new(time)
    }
}
