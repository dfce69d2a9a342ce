//! What the targets call of the command and of the library that it reads recordings by. All of it is named here, so
//! that code may move.

pub(crate) use unwind_cli::{
    dump_archive, explain_sample, read_core, read_gdb, read_perf_data, read_perf_script, read_qmp,
};
pub(crate) use unwind_profile::bounded::{
    compared_len, recorded_sections_len, records_len, reported_len,
};
pub(crate) use unwind_profile::mapped::kernel::listed as kernel_symbols_listed;
