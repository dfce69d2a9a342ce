//! How much is done, counted for the tests that bound it.

#[cfg(feature = "count-work")]
extern crate std;

/// Notes steps that were taken, each of which takes bounded time.
#[inline(always)]
pub fn steps(count: usize) {
    #[cfg(feature = "count-work")]
    STEPS.set(STEPS.get().wrapping_add(count));
    #[cfg(not(feature = "count-work"))]
    let _ = count;
}

#[cfg(feature = "count-work")]
std::thread_local! {
    static STEPS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// The steps that `run` takes on this thread.
#[cfg(feature = "count-work")]
pub fn count(run: impl FnOnce()) -> usize {
    STEPS.set(0);
    run();
    STEPS.get()
}
