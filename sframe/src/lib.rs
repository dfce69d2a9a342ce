//! SFrame stack trace tables.
#![no_std]
#![forbid(unsafe_code)]
