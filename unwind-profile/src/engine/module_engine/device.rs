//! The module's device, as `hosts/linux-module/module/unwind_device.h` describes it.

#![expect(unsafe_code, reason = "system calls of one device")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use crate::engine::module_error::ModuleError;
use crate::engine::perf_event::EventRing;

/// The device, open: its samples end with it.
#[derive(Debug)]
pub(super) struct Device(File);

/// What is asked for.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Setup {
    /// Set by [`Device::set_up`].
    pub(super) version: u32,
    pub(super) flags: u32,
    /// The type of the event.
    pub(super) kind: u32,
    /// Bytes of a ring.
    pub(super) ring_bytes: u32,
    pub(super) config: u64,
    /// How many times a second, or after how many of the event.
    pub(super) value: u64,
    /// Bytes from one ring to the next, which the module says.
    pub(super) stride: u64,
}

/// Flag: the value is how many times a second.
pub(super) const FREQUENCY: u32 = 1 << 0;
/// Flag: a task is sampled from its next exec on.
pub(super) const ON_EXEC: u32 = 1 << 1;
/// Flag: of user code alone.
pub(super) const USER_ONLY: u32 = 1 << 2;
/// Flag: each stack begins with a word that says how it ended.
pub(super) const TELL_ENDS: u32 = 1 << 3;
/// Flag: walks end in code that has no table, until one is handed in.
pub(super) const AWAIT_TABLES: u32 = 1 << 4;

const VERSION: u32 = 1;

#[derive(Debug)]
#[repr(C)]
struct Add {
    thread: i32,
    cpu: i32,
}

#[derive(Debug)]
#[repr(C)]
struct Table {
    file: i32,
    len: u32,
    at: *const u8,
    address: u64,
}

const ENDS: usize = 64;
const OUTCOMES: usize = 32;
const SAMPLES: usize = 8;

/// What the module counts, since it was loaded.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Counts {
    samples: u64,
    no_task: u64,
    no_memory: u64,
    /// Records for which a ring had no room.
    pub(super) no_room: u64,
    /// Requests, by how they came out.
    pub(super) outcomes: [u64; OUTCOMES],
    /// Stacks, by what became of them.
    pub(super) deliveries: [u64; SAMPLES],
    ends: [u64; ENDS],
}

/// The number of a request: whether the kernel reads, writes or both, and how many bytes.
const fn request(direction: u64, number: u64, len: u64) -> u64 {
    direction << 30 | len << 16 | 0x55 << 8 | number
}

const SETUP: u64 = request(3, 0xb0, 40);
const ADD: u64 = request(1, 0xb1, 8);
const TABLE: u64 = request(1, 0xb2, 24);
const COUNTS: u64 = request(2, 0xb3, 864);
const STOP: u64 = request(0, 0xb4, 0);

const _: () = {
    assert!(size_of::<Setup>() == 40, "as the request says");
    assert!(size_of::<Add>() == 8, "as the request says");
    assert!(size_of::<Table>() == 24, "as the request says");
    assert!(size_of::<Counts>() == 864, "as the request says");
};

impl Device {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`ModuleError::NotLoaded`] and [`ModuleError::Open`].
    pub(super) fn open() -> Result<Self, ModuleError> {
        let opened = File::options().read(true).write(true).open("/dev/unwind");
        opened.map(Self).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ModuleError::NotLoaded,
            // What has the name of a module that is gone.
            _ if error.raw_os_error() == Some(libc::ENXIO) => ModuleError::NotLoaded,
            _ => ModuleError::Open(error),
        })
    }

    /// Says what is asked for, once. Returns how many bytes there are from one ring to the next.
    ///
    /// # Errors
    ///
    /// [`ModuleError::OtherVersion`] and [`ModuleError::Setup`].
    pub(super) fn set_up(&self, mut setup: Setup) -> Result<u64, ModuleError> {
        setup.version = VERSION;
        // SAFETY: the kernel reads and writes this structure, as long as the request says.
        match unsafe { self.control(SETUP, &raw mut setup) } {
            Ok(()) => Ok(setup.stride),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
                Err(ModuleError::OtherVersion)
            }
            Err(error) => Err(ModuleError::Setup(error)),
        }
    }

    /// Takes samples of a thread and what it starts.
    pub(super) fn add_thread(&self, thread: i32) -> io::Result<()> {
        self.add(Add { thread, cpu: -1 })
    }

    /// Takes samples of a CPU.
    pub(super) fn add_cpu(&self, cpu: i32) -> io::Result<()> {
        self.add(Add { thread: -1, cpu })
    }

    fn add(&self, mut add: Add) -> io::Result<()> {
        // SAFETY: the kernel reads this structure, as long as the request says.
        unsafe { self.control(ADD, &raw mut add) }
    }

    /// Hands in the table of a file, made for the linked address zero. One of no bytes says that it has none.
    pub(super) fn hand_in(&self, file: &File, table: &[u8]) -> io::Result<()> {
        let len = u32::try_from(table.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut table = Table { file: file.as_raw_fd(), len, at: table.as_ptr(), address: 0 };
        // SAFETY: the kernel reads this structure, as long as the request says, and as many bytes of the table
        // as there are.
        unsafe { self.control(TABLE, &raw mut table) }
    }

    /// Takes no more samples. What was asked for still comes.
    pub(super) fn stop(&self) -> io::Result<()> {
        // SAFETY: it takes nothing.
        unsafe { self.control(STOP, std::ptr::null_mut::<u8>()) }
    }

    /// What it has counted.
    pub(super) fn counts(&self) -> io::Result<Counts> {
        let mut counts = Counts {
            samples: 0,
            no_task: 0,
            no_memory: 0,
            no_room: 0,
            outcomes: [0; OUTCOMES],
            deliveries: [0; SAMPLES],
            ends: [0; ENDS],
        };
        // SAFETY: the kernel writes this structure, as long as the request says.
        unsafe { self.control(COUNTS, &raw mut counts) }?;
        Ok(counts)
    }

    /// Maps the ring of a CPU.
    pub(super) fn map(&self, cpu: u64, stride: u64, bytes: usize) -> io::Result<EventRing> {
        let offset = cpu.checked_mul(stride).ok_or(io::ErrorKind::InvalidInput)?;
        EventRing::map(self.0.as_fd(), offset, bytes)
    }

    /// # Safety
    ///
    /// The argument is what the request takes.
    unsafe fn control<T>(&self, request: u64, argument: *mut T) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_the_module_is_asked_by_the_numbers_of_its_header() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../hosts/linux-module/module/unwind_device.h");
        let header = std::fs::read_to_string(path).unwrap();
        let defined = |name: &str| {
            let line =
                header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap_or_else(|| panic!("{name}")).to_owned()
        };
        for (name, flag) in [
            ("FREQUENCY", FREQUENCY),
            ("ON_EXEC", ON_EXEC),
            ("USER_ONLY", USER_ONLY),
            ("TELL_ENDS", TELL_ENDS),
            ("AWAIT_TABLES", AWAIT_TABLES),
        ] {
            let bit = flag.trailing_zeros();
            assert_eq!(defined(&format!("UNWIND_SETUP_{name}")), format!("(1 << {bit})"));
        }
        for (name, request, direction, of) in [
            ("SETUP", SETUP, "_IOWR", ", struct unwind_setup"),
            ("ADD", ADD, "_IOW", ", struct unwind_add"),
            ("TABLE", TABLE, "_IOW", ", struct unwind_table"),
            ("COUNTS", COUNTS, "_IOR", ", struct unwind_counts"),
            ("STOP", STOP, "_IO", ""),
        ] {
            let told = format!("{direction}('U', {:#x}{of})", request & 0xff);
            assert_eq!(defined(&format!("UNWIND_{name}")), told);
        }
        assert_eq!(defined("UNWIND_DEVICE_VERSION"), VERSION.to_string());
    }
}
