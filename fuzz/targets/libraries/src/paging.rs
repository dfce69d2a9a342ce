//! Any page tables: what is translated and read is what the manual's drawings
//! give, in every mode.

pub(crate) fn run(data: &[u8]) {
    crate::paging_model::check(data);
}
