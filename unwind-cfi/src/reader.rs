//! How the scalars of a section are read.

/// Bytes of a section, in the byte order of its ABI.
pub(super) type Reader<'a> = gimli::EndianSlice<'a, gimli::RunTimeEndian>;
