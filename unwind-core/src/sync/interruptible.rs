//! The atomics of `core` with a point before each access where a model's
//! handler may come.

pub(crate) use core::sync::atomic::Ordering;

use super::interrupt::{count_exchange, point};

pub(crate) fn fence(order: Ordering) {
    point();
    core::sync::atomic::fence(order);
}

macro_rules! interruptible {
    ($name:ident($atomic:ident, $int:ty, $point:path): $($method:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        #[derive(Debug)]
        #[repr(transparent)]
        pub(crate) struct $name(core::sync::atomic::$atomic);

        impl $name {
            pub(crate) const fn new(value: $int) -> Self {
                Self(core::sync::atomic::$atomic::new(value))
            }

            $(pub(crate) fn $method(&self, $($arg: $kind),*) -> $out {
                $point();
                if !matches!(stringify!($method), "load" | "store") {
                    count_exchange();
                }
                self.0.$method($($arg),*)
            })*
        }
    };
}

interruptible! {
    AtomicU32(AtomicU32, u32, point):
    load(order: Ordering) -> u32;
    fetch_add(value: u32, order: Ordering) -> u32;
    fetch_sub(value: u32, order: Ordering) -> u32;
}

interruptible! {
    AtomicU64(AtomicU64, u64, point):
    load(order: Ordering) -> u64;
    store(value: u64, order: Ordering) -> ();
    fetch_add(value: u64, order: Ordering) -> u64;
    fetch_or(value: u64, order: Ordering) -> u64;
    fetch_max(value: u64, order: Ordering) -> u64;
    compare_exchange(current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
}

/// Statistics decide nothing, so no handler has to come between.
fn no_point() {}

interruptible! {
    Statistic(AtomicU64, u64, no_point):
    load(order: Ordering) -> u64;
    store(value: u64, order: Ordering) -> ();
    fetch_add(value: u64, order: Ordering) -> u64;
}
