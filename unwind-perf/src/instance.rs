//! Which one of several.

use crate::sync::{AtomicU64, Ordering, const_unless_loom, counter};

/// Gives a number to a value that may be in a static, on first use. Each value
/// gets a different number.
#[derive(Debug)]
pub(crate) struct Instance(AtomicU64);

/// The number of an instance, unique in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstanceNumber(u64);

counter! {
    /// The number of the next instance.
    static NEXT: AtomicU64 = 1;
}

impl Instance {
    const_unless_loom! {
        /// One that was not asked for its number.
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Its number. The number is all there is, so there is nothing to order.
    pub(crate) fn number(&self) -> InstanceNumber {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return InstanceNumber(known);
        }
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.0.compare_exchange(0, fresh, done, failed) {
            Ok(_) => InstanceNumber(fresh),
            Err(found) => InstanceNumber(found),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn b10_an_instance_has_one_number_and_two_have_two() {
        let (one, other) = (Instance::new(), Instance::new());
        assert_eq!(one.number(), one.number());
        assert_ne!(one.number(), other.number());
    }
}
