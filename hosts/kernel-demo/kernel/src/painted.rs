//! Stacks that are painted, so that what was used of them can be told.

/// What a painted word holds.
pub(crate) const PAINT: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Paints a stack that is not in use.
///
/// # Safety
///
/// Nothing on it is used any more.
pub(crate) unsafe fn paint(start: u64, end: u64) {
    for at in (start..end).step_by(8) {
        // SAFETY: the caller's.
        unsafe { (at as *mut u64).write_volatile(PAINT) }
    }
}

/// How many bytes of a painted stack have been in use.
pub(crate) fn used(start: u64, end: u64) -> u64 {
    let is_painted = |at: &u64| {
        // SAFETY: inside a stack, which is mapped; volatile, as it may be in
        // use.
        unsafe { (*at as *const u64).read_volatile() == PAINT }
    };
    end - start - 8 * (start..end).step_by(8).take_while(is_painted).count() as u64
}
