//! The atomics of this crate and of `unwind-perf`.
//!
//! | build | atomics |
//! |---|---|
//! | any | those of `core` |
//! | `cfg(loom)` | loom's, which try every interleaving of threads, at one place with a fault if `sync/faulty.rs` is told so |
//! | unit tests | `core`'s, with a hook before each access |
//!
//! loom knows threads but not NMIs: a handler that interrupts a function runs
//! to its end before the function continues. The hook of the unit tests is for
//! that: a model runs a handler before the n-th access, for every n.
//!
//! Public for `unwind-perf` only: no part of the interface.

#[cfg(loom)]
pub use faulty::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(loom, test)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, not(loom)))]
pub use test_support::interruptible::{AtomicU32, AtomicU64, Ordering, fence};

pub use statistic::Statistic;

/// Declares a function that is `const` except under loom, whose atomics are
/// not.
#[doc(hidden)]
#[macro_export]
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
pub use const_unless_loom;

/// A count of the whole program, an atomic of the given type.
#[doc(hidden)]
#[macro_export]
macro_rules! counter {
    ($(#[$attr:meta])* static $name:ident: $atomic:ident = $first:expr;) => {
        #[cfg(not(loom))]
        $(#[$attr])*
        static $name: $atomic = $atomic::new($first);

        #[cfg(loom)]
        loom::lazy_static! {
            $(#[$attr])*
            static ref $name: $atomic = $atomic::new($first);
        }
    };
}
pub use counter;

/// An array of values that hold atomics.
#[doc(hidden)]
#[macro_export]
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
pub use atomics;

#[cfg(loom)]
pub mod faulty;
mod statistic;
