//! By what memory without a file is taken for code of a file that was moved there.

/// What proves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TextProof {
    /// Its bytes: the process runs.
    Bytes,
    /// Its place alone.
    Place,
    /// Nothing does: who recorded it has looked at the bytes.
    #[default]
    None,
}
