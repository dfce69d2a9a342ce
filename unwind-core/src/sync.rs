//! The atomics of the crate.
//!
//! | build | atomics |
//! |---|---|
//! | any | those of `core` |
//! | `cfg(loom)` | loom's, which try every interleaving of threads |

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};

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
