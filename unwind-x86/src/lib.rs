//! x86-64 and ia32 back ends.
#![no_std]
#![forbid(unsafe_code)]
