//! The atomics of `core` with a [`point`] before each access, where a model's handler may
//! come.

pub use core::sync::atomic::Ordering;

use crate::interrupt::{count_exchange, point};

/// The fence of `core`.
pub fn fence(order: Ordering) {
    point();
    core::sync::atomic::fence(order);
}

macro_rules! interruptible {
    ($name:ident($int:ty)) => {
        #[doc = concat!("The `", stringify!($name), "` of `core`, with the methods that the libraries use.")]
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$name);

        #[expect(missing_docs, reason = "as in core")]
        impl $name {
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $int {
                point();
                self.0.load(order)
            }

            pub fn store(&self, value: $int, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            #[expect(clippy::missing_errors_doc, reason = "as in core")]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                point();
                count_exchange();
                self.0.compare_exchange(current, new, success, failure)
            }
        }

        interruptible!($name($int): fetch_add, fetch_sub, fetch_or, fetch_and, fetch_max);
    };
    ($name:ident($int:ty): $($exchange:ident),*) => {
        #[expect(missing_docs, reason = "as in core")]
        impl $name {
            $(pub fn $exchange(&self, value: $int, order: Ordering) -> $int {
                point();
                count_exchange();
                self.0.$exchange(value, order)
            })*
        }
    };
}

interruptible!(AtomicU32(u32));
interruptible!(AtomicU64(u64));
