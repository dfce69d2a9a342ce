//! What goes wrong, by libunwind's numbers.

use core::ffi::{CStr, c_char, c_int};

use unwind_local::{End, StepError};

/// An error. Functions return the negated number.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Error {
    NoMemory = 2,
    BadRegister = 3,
    StopUnwind = 5,
    InvalidIp = 6,
    BadFrame = 7,
    BadValue = 8,
    NoInfo = 10,
}

impl Error {
    /// What a function returns.
    pub(crate) const fn result(self) -> c_int {
        -(self as c_int)
    }
}

/// What `unw_step` returns at the end of a walk: zero if there is no caller.
pub(crate) const fn of_end(end: End) -> c_int {
    match end {
        End::Outermost | End::ZeroReturnAddress => 0,
        End::FrameLimit => Error::StopUnwind.result(),
        End::Step(StepError::NonCanonical { .. } | StepError::NotCode { .. }) => {
            Error::InvalidIp.result()
        }
        End::Step(_) => Error::BadFrame.result(),
        _ => Error::NoInfo.result(),
    }
}

/// The text of an error, of what a function returned or the negated of it.
#[unsafe(export_name = "_Ux86_64_strerror")]
extern "C" fn strerror(number: c_int) -> *const c_char {
    let text: &CStr = match number.unsigned_abs() {
        0 => c"no error",
        1 => c"unspecified error",
        2 => c"no room",
        3 => c"no such register, or its value is not known",
        4 => c"the register cannot be written",
        5 => c"the walk is not continued",
        6 => c"no code is at the return address",
        7 => c"the frame is damaged",
        8 => c"bad value, or not supported",
        9 => c"tables of another version",
        10 => c"nothing tells of the code",
        _ => c"no such error",
    };
    text.as_ptr()
}
