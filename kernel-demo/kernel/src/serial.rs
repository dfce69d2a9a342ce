//! The console: the first serial port. And a port that takes bytes for the
//! machine outside: where the recorded data goes.

use core::fmt::{self, Write};

use crate::cpu;

const DATA: u16 = 0x3f8;
const LINE_STATUS: u16 = 0x3fd;
const TRANSMITTER_EMPTY: u8 = 0x20;

/// QEMU's debug console: `-debugcon file:…`.
const RECORDS: u16 = 0xe9;

/// The console.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while cpu::read_port(LINE_STATUS) & TRANSMITTER_EMPTY == 0 {}
            // SAFETY: the serial port has no access to memory.
            unsafe { cpu::write_port(DATA, byte) }
        }
        Ok(())
    }
}

/// Hands bytes of the record stream to the outside.
pub(crate) fn export(bytes: &[u8]) {
    for &byte in bytes {
        // SAFETY: the port has no access to memory.
        unsafe { cpu::write_port(RECORDS, byte) }
    }
}

/// Prints a line. The console never fails.
macro_rules! println {
    ($($arguments:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::serial::Console, $($arguments)*);
    }};
}
pub(crate) use println;
