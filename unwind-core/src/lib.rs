//! Stack walking and deferred unwinding.
#![no_std]
#![forbid(unsafe_code)]
