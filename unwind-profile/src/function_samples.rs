//! How often a function was seen.

/// In how many samples a function is: its share of [`Profile::samples`](crate::Profile::samples) is its share of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSamples {
    /// Its name, to be shown as it is; `[unknown]` and the like where it has none.
    pub name: String,
    /// The file that it is in, to be shown as it is, if that is known.
    pub file: Option<String>,
    /// Whether it is the kernel's.
    pub is_kernel: bool,
    /// Samples in which it is the innermost function.
    pub own: u64,
    /// Samples in whose stacks it is, anywhere.
    pub total: u64,
}
