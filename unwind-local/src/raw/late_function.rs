//! Functions that few programs need: what links this library has no code of them unless it calls
//! what sets them.

use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that is called once it was set.
pub(super) struct LateFunction<F>(AtomicPtr<()>, PhantomData<F>);

impl<F: Copy> LateFunction<F> {
    /// None yet.
    ///
    /// # Safety
    ///
    /// The type is that of pointers to functions.
    pub(super) const unsafe fn new() -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
        Self(AtomicPtr::new(null_mut()), PhantomData)
    }

    pub(super) fn set(&self, function: F) {
        // SAFETY: pointers to functions are pointers.
        self.0.store(unsafe { transmute_copy(&function) }, Ordering::Release);
    }

    #[inline]
    pub(super) fn get(&self) -> Option<F> {
        let function = self.0.load(Ordering::Acquire);
        // SAFETY: it is one that was set.
        (!function.is_null()).then(|| unsafe { transmute_copy(&function) })
    }
}
