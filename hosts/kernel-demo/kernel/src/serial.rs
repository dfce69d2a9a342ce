//! The console: the first serial port. And a port that takes bytes for the
//! machine outside: where the recorded data goes.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{cpu, memory, options};

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

static EXPORTED: AtomicU64 = AtomicU64::new(0);

/// Hands bytes of the record stream to the outside: by the port, or in memory if there is
/// an area for it. One at a time.
pub(crate) fn export(bytes: &[u8]) {
    let at = EXPORTED.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let area = options::get().area;
    if area != 0 {
        return memory::append_to_area(area << 20, at, bytes);
    }
    for &byte in bytes {
        // SAFETY: the port has no access to memory.
        unsafe { cpu::write_port(RECORDS, byte) }
    }
}

/// How many bytes of records were handed out.
pub(crate) fn exported() -> u64 {
    EXPORTED.load(Ordering::Relaxed)
}

/// Prints a line. The console never fails.
macro_rules! println {
    ($($arguments:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::serial::Console, $($arguments)*);
    }};
}
pub(crate) use println;
