//! Whether the caller of this program ignores `SIGPIPE`.

#![expect(unsafe_code, reason = "code before main")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the caller of this program ignores `SIGPIPE`, which the standard library does before `main`.
pub(crate) fn is_ignored() -> bool {
    IGNORED_PIPE.load(Ordering::Relaxed)
}

static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// Called before `main`, and before the standard library changes anything.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is set; the one there is is written to `action`, which has room for it.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it is a struct of integers, for which zeroes are a value.
    let action = unsafe { action.assume_init() };
    IGNORED_PIPE.store(asked == 0 && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}
