//! Tables from call frame information: `.eh_frame` and `.debug_frame`, which
//! [`unwind_cfi`] reads.

pub(crate) mod convert;
pub(crate) mod lost;
