//! loom's atomics, at one place with a fault: for `checks/mutations/orderings`.
//!
//! | variable of the environment | what |
//! |---|---|
//! | `ORDERINGS_SITES` | a file to which the run adds each site it meets: `FILE:LINE:COLUMN OPERATION FAULT...` |
//! | `ORDERINGS_FAULT` | `FILE:LINE:COLUMN FAULT`: the one access that is faulty in this run |
//!
//! Without them the atomics are loom's.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a model that is asked for what there is not fails"
)]

extern crate alloc;
extern crate std;

use alloc::string::{String, ToString};
use core::panic::Location;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, OnceLock};

pub use loom::sync::atomic::Ordering;

/// What can be wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It acquires nothing.
    NoAcquire,
    /// It releases nothing.
    NoRelease,
    /// It is in no total order, but acquires and releases.
    NoSeqCst,
    /// A compare-exchange that fails acquires nothing.
    FailureNoAcquire,
    /// The fence is not there.
    NoFence,
    /// The exchange is a load and a store.
    Split,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::NoAcquire,
        Self::NoRelease,
        Self::NoSeqCst,
        Self::FailureNoAcquire,
        Self::NoFence,
        Self::Split,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::NoAcquire => "no-acquire",
            Self::NoRelease => "no-release",
            Self::NoSeqCst => "no-seqcst",
            Self::FailureNoAcquire => "failure-no-acquire",
            Self::NoFence => "no-fence",
            Self::Split => "split",
        }
    }

    /// Whether an access with these orderings can have the fault.
    fn is_possible(self, operation: Operation, order: Ordering, failure: Ordering) -> bool {
        let is_fence = operation == Operation::Fence;
        match self {
            Self::NoAcquire => !is_fence && acquires(order),
            Self::NoRelease => !is_fence && releases(order),
            Self::NoSeqCst => order == Ordering::SeqCst,
            Self::FailureNoAcquire => acquires(failure),
            Self::NoFence => is_fence,
            Self::Split => matches!(operation, Operation::Exchange(_)),
        }
    }

    /// What this makes of the ordering of an access.
    fn weaken(self, order: Ordering) -> Ordering {
        match (self, order) {
            (Self::NoAcquire, Ordering::AcqRel | Ordering::SeqCst) => Ordering::Release,
            (Self::NoRelease, Ordering::AcqRel | Ordering::SeqCst) => Ordering::Acquire,
            (Self::NoAcquire, Ordering::Acquire) | (Self::NoRelease, Ordering::Release) => {
                Ordering::Relaxed
            }
            (Self::NoSeqCst, Ordering::SeqCst) => Ordering::AcqRel,
            _ => order,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Load,
    Store,
    Fence,
    Exchange(&'static str),
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::Fence => "fence",
            Self::Exchange(name) => name,
        }
    }
}

fn acquires(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

fn releases(order: Ordering) -> bool {
    matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
}

/// The loading half of an exchange.
fn loading(order: Ordering) -> Ordering {
    if acquires(order) { Ordering::Acquire } else { Ordering::Relaxed }
}

/// The storing half of an exchange.
fn storing(order: Ordering) -> Ordering {
    if releases(order) { Ordering::Release } else { Ordering::Relaxed }
}

/// The access that is faulty in this run.
struct Chosen {
    file: String,
    line: u32,
    column: u32,
    fault: Fault,
}

impl Chosen {
    fn from_environment() -> Option<Self> {
        let text = std::env::var("ORDERINGS_FAULT").ok()?;
        let (site, fault) = text.split_once(' ').expect("FILE:LINE:COLUMN FAULT");
        let mut site = site.rsplitn(3, ':');
        let mut number = || site.next().unwrap().parse().expect("a number");
        let (column, line) = (number(), number());
        let file = site.next().expect("a file").to_string();
        let fault = Fault::ALL.into_iter().find(|it| it.name() == fault).expect("a fault");
        Some(Self { file, line, column, fault })
    }
}

/// The sites that this run has met, and where it says so.
struct Sites {
    met: HashSet<(&'static str, u32, u32, Operation)>,
    file: File,
}

impl Sites {
    fn from_environment() -> Option<Mutex<Self>> {
        let path = std::env::var_os("ORDERINGS_SITES")?;
        let file = OpenOptions::new().create(true).append(true).open(path).expect("the file");
        Some(Mutex::new(Self { met: HashSet::new(), file }))
    }

    fn meet(
        &mut self,
        at: &'static Location<'static>,
        operation: Operation,
        order: Ordering,
        failure: Ordering,
    ) {
        if !self.met.insert((at.file(), at.line(), at.column(), operation)) {
            return;
        }
        let mut line = alloc::format!("{at} {}", operation.name());
        for fault in Fault::ALL {
            if fault.is_possible(operation, order, failure) {
                line.push(' ');
                line.push_str(fault.name());
            }
        }
        line.push('\n');
        self.file.write_all(line.as_bytes()).expect("the file of sites");
    }
}

/// The fault that the access of the caller's caller has.
#[track_caller]
fn fault(operation: Operation, order: Ordering, failure: Ordering) -> Option<Fault> {
    static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
    static SITES: OnceLock<Option<Mutex<Sites>>> = OnceLock::new();
    let at = Location::caller();
    if let Some(sites) = SITES.get_or_init(Sites::from_environment) {
        sites.lock().unwrap().meet(at, operation, order, failure);
    }
    let chosen = CHOSEN.get_or_init(Chosen::from_environment).as_ref()?;
    let is_chosen =
        at.line() == chosen.line && at.column() == chosen.column && at.file() == chosen.file;
    is_chosen.then(|| {
        assert!(
            chosen.fault.is_possible(operation, order, failure),
            "{} at {at}",
            chosen.fault.name()
        );
        chosen.fault
    })
}

#[track_caller]
pub fn fence(order: Ordering) {
    match fault(Operation::Fence, order, Ordering::Relaxed) {
        Some(Fault::NoFence) => {}
        Some(fault) => loom::sync::atomic::fence(fault.weaken(order)),
        None => loom::sync::atomic::fence(order),
    }
}

macro_rules! faulty {
    ($name:ident($int:ty)) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            #[track_caller]
            pub fn new(value: $int) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                let fault = fault(Operation::Load, order, Ordering::Relaxed);
                self.0.load(fault.map_or(order, |fault| fault.weaken(order)))
            }

            #[track_caller]
            pub fn store(&self, value: $int, order: Ordering) {
                let fault = fault(Operation::Store, order, Ordering::Relaxed);
                self.0.store(value, fault.map_or(order, |fault| fault.weaken(order)));
            }

            #[track_caller]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.swap(value, order);
                self.exchange("swap", order, exchange, |_| value)
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.fetch_add(value, order);
                self.exchange("fetch_add", order, exchange, |old| old.wrapping_add(value))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.fetch_sub(value, order);
                self.exchange("fetch_sub", order, exchange, |old| old.wrapping_sub(value))
            }

            #[track_caller]
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.fetch_or(value, order);
                self.exchange("fetch_or", order, exchange, |old| old | value)
            }

            #[track_caller]
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.fetch_and(value, order);
                self.exchange("fetch_and", order, exchange, |old| old & value)
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                let exchange = |order| self.0.fetch_max(value, order);
                self.exchange("fetch_max", order, exchange, |old| old.max(value))
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let operation = Operation::Exchange("compare_exchange");
                match fault(operation, success, failure) {
                    None => self.0.compare_exchange(current, new, success, failure),
                    Some(Fault::Split) => {
                        let order = if acquires(failure) { failure } else { loading(success) };
                        let found = self.0.load(order);
                        if found != current {
                            return Err(found);
                        }
                        self.0.store(new, storing(success));
                        Ok(found)
                    }
                    Some(Fault::FailureNoAcquire) => {
                        self.0.compare_exchange(current, new, success, Ordering::Relaxed)
                    }
                    Some(fault) => {
                        self.0.compare_exchange(current, new, fault.weaken(success), failure)
                    }
                }
            }

            #[track_caller]
            fn exchange(
                &self,
                name: &'static str,
                order: Ordering,
                exchange: impl FnOnce(Ordering) -> $int,
                changed: impl FnOnce($int) -> $int,
            ) -> $int {
                match fault(Operation::Exchange(name), order, Ordering::Relaxed) {
                    None => exchange(order),
                    Some(Fault::Split) => {
                        let old = self.0.load(loading(order));
                        self.0.store(changed(old), storing(order));
                        old
                    }
                    Some(fault) => exchange(fault.weaken(order)),
                }
            }
        }
    };
}

faulty!(AtomicU32(u32));
faulty!(AtomicU64(u64));
