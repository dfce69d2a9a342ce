//! The monitor of a guest, that tells the registers of its vCPUs and stops it: QEMU by its own protocol, or what has
//! a stub for gdb.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use serde::de::IgnoredAny;

use crate::commands::guest::error::GuestError;
use crate::commands::guest::files::SymbolFile;
use crate::commands::guest::gdb::Gdb;
use crate::commands::guest::qmp::Qmp;
use crate::commands::guest::ram::{GuestRam, MemoryMap};
use crate::commands::guest::registers::VcpuState;
use crate::failure::Failure;

/// Where a guest is.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// The QMP socket of the QEMU
    #[arg(long, value_name = "SOCKET")]
    pub(crate) qmp: Option<PathBuf>,

    /// The stub for gdb of the guest's monitor instead, as of QEMU's -gdb: HOST:PORT, or the path of a
    /// socket. Registers and memory come from it alone
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gdb: Option<String>,

    /// The file that the guest's memory is in, shared, instead of the memory of QEMU itself, or
    /// of what the stub reads
    #[arg(long, value_name = "FILE", requires = "monitor")]
    pub(crate) mem: Option<PathBuf>,

    /// A folder with files of the guest: those with the build ids of its programs name functions that these
    /// do not export, and have the tables that these lack in memory
    #[arg(long, value_name = "DIR", requires = "monitor")]
    pub(crate) sysroot: Option<PathBuf>,

    /// An ELF file whose code the guest executes, or the image of its Linux
    /// kernel, for names and tables; may be given several times. ADDR is where its first
    /// segment is loaded, hexadecimal with 0x, if not where it was linked for
    #[arg(long, value_name = "FILE[@ADDR]", requires = "monitor",
          value_parser = OsStringValueParser::new().try_map(SymbolFile::parse::<OsString>))]
    pub(crate) symbols: Vec<SymbolFile>,
}

/// A connection to a monitor.
#[derive(Debug)]
pub(crate) enum Monitor {
    Qmp(Qmp),
    /// Memory is read by the same connection.
    Gdb(Rc<RefCell<Gdb>>),
}

impl Source {
    /// Connects to the monitor, and finds the guest's memory.
    ///
    /// # Errors
    ///
    /// [`Failure`] if one of them is not to be had.
    pub(crate) fn connect(&self) -> Result<(Monitor, GuestRam), Failure> {
        let regions_of = |text: &str| {
            let regions = MemoryMap::regions(text);
            if regions.is_empty() { Err(GuestError::NoMemoryMap) } else { Ok(regions) }
        };
        // A file has what there is most of.
        let of_file = |text: &str| Ok::<_, GuestError>(regions_of(text)?.swap_remove(0));
        if let Some(address) = &self.gdb {
            let mut gdb = Gdb::connect(address)?;
            let text = gdb.monitor("info mtree -f")?;
            let gdb = Rc::new(RefCell::new(gdb));
            let ram = match &self.mem {
                Some(path) => GuestRam::open(path, of_file(&text)?)?,
                None => GuestRam::Stub {
                    stub: Rc::clone(&gdb),
                    map: MemoryMap::of_addresses(regions_of(&text)?),
                },
            };
            return Ok((Monitor::Gdb(gdb), ram));
        }
        let mut qmp = Qmp::connect(self.qmp.as_deref().unwrap_or_else(|| "".as_ref()))?;
        let text = qmp.monitor("info mtree -f", None)?;
        let ram = match &self.mem {
            Some(path) => GuestRam::open(path, of_file(&text)?)?,
            None => qmp.memory(regions_of(&text)?)?,
        };
        Ok((Monitor::Qmp(qmp), ram))
    }
}

impl Monitor {
    /// The numbers of the vCPUs.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not tell.
    pub(crate) fn vcpus(&mut self) -> Result<Vec<u64>, GuestError> {
        match self {
            Self::Qmp(qmp) => qmp.vcpus(),
            Self::Gdb(gdb) => Ok((0..).take(gdb.borrow().vcpus()).collect()),
        }
    }

    /// The registers of a vCPU.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not tell.
    pub(crate) fn state(&mut self, vcpu: u64) -> Result<VcpuState, GuestError> {
        match self {
            Self::Qmp(qmp) => {
                let text = qmp.monitor("info registers", Some(vcpu))?;
                VcpuState::parse(&text).map_err(|missing| GuestError::Registers { vcpu, missing })
            }
            Self::Gdb(gdb) => gdb.borrow_mut().state(vcpu),
        }
    }

    /// Whether the guest runs.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not tell.
    pub(crate) fn is_running(&mut self) -> Result<bool, GuestError> {
        match self {
            Self::Qmp(qmp) => qmp.is_running(),
            Self::Gdb(gdb) => Ok(gdb.borrow().is_running()),
        }
    }

    /// Stops the guest.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not.
    pub(crate) fn stop(&mut self) -> Result<(), GuestError> {
        match self {
            Self::Qmp(qmp) => qmp.execute::<IgnoredAny>("stop", None).map(drop),
            Self::Gdb(gdb) => gdb.borrow_mut().stop(),
        }
    }

    /// Lets the guest continue.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not.
    pub(crate) fn resume(&mut self) -> Result<(), GuestError> {
        match self {
            Self::Qmp(qmp) => qmp.execute::<IgnoredAny>("cont", None).map(drop),
            Self::Gdb(gdb) => gdb.borrow_mut().resume(),
        }
    }

    /// Lets a guest run that stands since its stub for gdb was connected to.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the monitor does not.
    pub(crate) fn begin(&mut self) -> Result<(), GuestError> {
        match self {
            Self::Qmp(_) => Ok(()),
            Self::Gdb(gdb) => gdb.borrow_mut().resume(),
        }
    }

    /// Gives all answers up to `deadline` no more time than until then.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        match self {
            Self::Qmp(qmp) => qmp.set_deadline(deadline),
            Self::Gdb(gdb) => gdb.borrow_mut().set_deadline(deadline),
        }
    }
}
