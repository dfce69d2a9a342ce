//! What ends of walks are called in a ledger.

/// A word for the code of an end ([`unwind_core::End::code`]) that is not the end of a stack.
#[must_use]
pub const fn name_of_end(code: u8) -> &'static str {
    match code {
        3 => "frame-limit",
        4 => "no-row",
        5 => "not-walkable",
        6 => "bad-table",
        33 => "unreadable",
        34 => "no-progress",
        35 => "misaligned",
        36 => "beyond-stack",
        37 => "non-canonical",
        38 => "not-code",
        39 => "zero-return-address",
        40 => "zero-frame-pointer",
        41 => "frame-pointer-below-stack",
        42 => "unknown-register",
        43 => "overflow",
        44 => "bad-rule",
        45 => "unknown-trampoline",
        46 => "return-probe",
        47 => "caller-beside-zero",
        _ => "other",
    }
}
