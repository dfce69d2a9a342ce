//! The atomics of the crate.
//!
//! | build | atomics |
//! |---|---|
//! | any | those of `core` |
//! | `cfg(loom)` | loom's, which try every interleaving of threads, at one place with a fault if [`faulty`] is told so |
//! | unit tests | `core`'s, with a hook before each access |
//!
//! loom knows threads but not NMIs: a handler that interrupts a function runs
//! to its end before the function continues. The hook of the unit tests is for
//! that: a model runs a handler before the n-th access, for every n.

#[cfg(loom)]
pub(crate) use faulty::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(loom, test)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, not(loom)))]
pub(crate) use interruptible::{AtomicU32, AtomicU64, Ordering, fence};

/// Statistics: no decision depends on them, so no handler has to come between.
#[cfg(not(any(loom, test)))]
pub(crate) use core::sync::atomic::AtomicU64 as Statistic;
#[cfg(loom)]
pub(crate) use faulty::AtomicU64 as Statistic;
#[cfg(all(test, not(loom)))]
pub(crate) use interruptible::Statistic;

/// Declares a function that is `const` except under loom, whose atomics are
/// not.
macro_rules! const_unless_loom {
    ($(#[$attr:meta])* $vis:vis fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$attr])*
        $vis const fn $($rest)*

        #[cfg(loom)]
        $(#[$attr])*
        $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;

/// An array of atomics.
macro_rules! atomics {
    ($each:expr; $count:expr) => {{
        #[cfg(not(loom))]
        {
            [const { $each }; $count]
        }
        #[cfg(loom)]
        {
            core::array::from_fn::<_, { $count }, _>(|_| $each)
        }
    }};
}
pub(crate) use atomics;

#[cfg(loom)]
pub mod faulty;
#[cfg(all(test, not(loom)))]
pub(crate) mod interrupt;
#[cfg(all(test, not(loom)))]
mod interruptible;
