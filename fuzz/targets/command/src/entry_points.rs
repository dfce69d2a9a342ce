//! What the targets call of the command. All of it is named here, so that code may move.

pub(crate) use unwind_cli::{
    compare_perf_data, dump_archive, explain_sample, perf_records_len, read_core,
    read_kernel_symbols, read_perf_data, read_perf_script, read_qmp, read_recorded_sections,
    report_perf_data,
};
