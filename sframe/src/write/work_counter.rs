//! How much is done to write a table, counted for the tests that bound it.

#[cfg(all(test, feature = "cfi"))]
extern crate std;

/// Notes steps that were taken, each of which takes bounded time. Only tests
/// count them.
#[inline(always)]
pub(crate) fn steps(count: usize) {
    #[cfg(all(test, feature = "cfi"))]
    STEPS.set(STEPS.get().wrapping_add(count));
    #[cfg(not(all(test, feature = "cfi")))]
    let _ = count;
}

#[cfg(all(test, feature = "cfi"))]
std::thread_local! {
    static STEPS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// The steps that `run` takes.
#[cfg(all(test, feature = "cfi"))]
pub(crate) fn count(run: impl FnOnce()) -> usize {
    STEPS.set(0);
    run();
    STEPS.get()
}
