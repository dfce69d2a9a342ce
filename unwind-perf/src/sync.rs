//! The atomics of the crate.
//!
//! | build | atomics |
//! |---|---|
//! | any | those of `core` |
//! | `cfg(loom)` | loom's, which try every interleaving of threads, as `unwind-core` wraps them |
//! | unit tests | `core`'s, with a hook before each access ([`interrupt`]) |
//!
//! loom knows threads but not NMIs: a handler that interrupts a function runs
//! to its end before the function continues. The hook of the unit tests covers
//! that: a model runs a handler before the n-th access, for every n.

#[cfg(loom)]
pub(crate) use unwind_core::faulty::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(loom, test)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, not(loom)))]
pub(crate) use interruptible::{AtomicU32, AtomicU64, Ordering, fence};

/// A count that no decision depends on, so no model needs to see it.
#[derive(Debug)]
pub(crate) struct Statistic(core::sync::atomic::AtomicU64);

impl Statistic {
    pub(crate) const fn new() -> Self {
        Self(core::sync::atomic::AtomicU64::new(0))
    }

    /// Counts one more.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(core::sync::atomic::Ordering::Relaxed)
    }
}

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

/// A count of the whole program.
macro_rules! counter {
    ($(#[$attr:meta])* static $name:ident = $first:expr;) => {
        #[cfg(not(loom))]
        $(#[$attr])*
        static $name: $crate::sync::AtomicU64 = $crate::sync::AtomicU64::new($first);

        #[cfg(loom)]
        loom::lazy_static! {
            $(#[$attr])*
            static ref $name: $crate::sync::AtomicU64 = $crate::sync::AtomicU64::new($first);
        }
    };
}
pub(crate) use counter;

/// An array of values that hold atomics.
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

/// Where the NMI models break in.
#[cfg(all(test, not(loom)))]
pub(crate) mod interrupt {
    extern crate std;

    use alloc::rc::Rc;
    use core::cell::{Cell, RefCell};
    use std::thread_local;

    type Handler = Rc<dyn Fn(u64)>;

    thread_local! {
        static POINTS: Cell<u64> = const { Cell::new(0) };
        static HANDLER: RefCell<Option<Handler>> = const { RefCell::new(None) };
    }

    /// Called before each atomic access, and by models wherever else an NMI
    /// may arrive.
    pub(crate) fn point() {
        let number = POINTS.get();
        POINTS.set(number.wrapping_add(1));
        let handler = HANDLER.with_borrow(Clone::clone);
        if let Some(handler) = handler {
            handler(number);
        }
    }

    /// Runs `body` with `handler` called at each point with the number of the
    /// point, and returns how many there were. The points of the handler
    /// itself count and call it too.
    pub(crate) fn at_each_point(handler: impl Fn(u64) + 'static, body: impl FnOnce()) -> u64 {
        POINTS.set(0);
        let handler: Handler = Rc::new(handler);
        HANDLER.set(Some(handler));
        let _clear = Clear;
        body();
        POINTS.get()
    }

    /// Removes the handler, also when a model fails.
    struct Clear;

    impl Drop for Clear {
        fn drop(&mut self) {
            drop(HANDLER.take());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod interruptible {
    pub(crate) use core::sync::atomic::Ordering;

    use super::interrupt::point;

    pub(crate) fn fence(order: Ordering) {
        point();
        core::sync::atomic::fence(order);
    }

    macro_rules! interruptible {
        ($name:ident, $int:ty, $($method:ident),*) => {
            #[derive(Debug)]
            #[repr(transparent)]
            pub(crate) struct $name(core::sync::atomic::$name);

            impl $name {
                pub(crate) const fn new(value: $int) -> Self {
                    Self(core::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $int {
                    point();
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $int, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }

                $(
                    pub(crate) fn $method(&self, value: $int, order: Ordering) -> $int {
                        point();
                        self.0.$method(value, order)
                    }
                )*
            }
        };
    }

    interruptible!(AtomicU32, u32, fetch_add, fetch_sub, fetch_or, fetch_and);
    interruptible!(AtomicU64, u64, fetch_add, fetch_sub, fetch_or, fetch_and);
}
