//! Tables from call frame information: `.eh_frame` and `.debug_frame`, which
//! [`unwind_cfi`] reads.

pub(crate) mod convert;
mod eh_returns;
pub(crate) mod lost;
pub(crate) mod parts;
