//! A table in the target's memory gives the same answers as its bytes in our
//! memory, or names what it could not read. A lookup is bounded, whatever
//! changes meanwhile.

use sframe::{RemoteBuffer, RemoteError, RemoteTable, Table};
use unwind_core::{Memory, ReadError, TableError as _, VirtAddr};

use crate::{input::Input, plain_table::pcs};

const PAGE: u64 = 4096;
/// The longest read, in bytes.
const WINDOW: usize = 192;

/// Memory with absent pages, and with a writer.
struct Target<'a> {
    bytes: Vec<u8>,
    addr: u64,
    /// A bit for each page of the section that is absent.
    absent: u64,
    /// What is written before each read: where, and what.
    writes: Input<'a>,
    reads: u32,
}

impl Memory for Target<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        assert!(buf.len() <= WINDOW);
        if !self.writes.is_empty() && !self.bytes.is_empty() {
            let at = usize::from(self.writes.u16()) % self.bytes.len();
            self.bytes[at] = self.writes.u8();
        }
        let first = addr.get().wrapping_sub(self.addr);
        let last = first.wrapping_add(buf.len() as u64 - 1);
        let page = |offset: u64| self.addr.wrapping_add(offset) / PAGE - self.addr / PAGE;
        for page in [page(first), page(last)] {
            if self.absent >> page.min(63) & 1 == 1 {
                return Err(ReadError::NotResident);
            }
        }
        let at = usize::try_from(first).map_err(|_| ReadError::Invalid)?;
        let found = self.bytes.get(at..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(found.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let addr = 0x7000_0000 + u64::from(input.u16());
    let absent = match input.u8() {
        0..0x80 => 0,
        bits => u64::from(bits & 0x7f) << 1,
    };
    let len = usize::from(input.u8() & 0x1f);
    let writes = Input::new(input.take(len * 3));
    let bytes = input.rest();
    let changes = !writes.is_empty();
    let mut memory = Target { bytes: bytes.to_vec(), addr, absent, writes, reads: 0 };
    let opened = RemoteTable::open(&mut memory, addr, bytes.len() as u64);
    let at_hand = Table::parse(bytes).map(|table| table.at(addr));
    if !changes && absent == 0 {
        assert_eq!(
            opened.map(|remote| *remote.header()),
            at_hand.map(|table| table.header()).map_err(RemoteError::Table)
        );
    }
    let (Ok(remote), Ok(table)) = (opened, at_hand) else { return };
    let mut window = RemoteBuffer::new();
    for pc in pcs(&table) {
        memory.reads = 0;
        let found = remote.find(&mut memory, pc);
        // Each entry is read once, and the rows once; an end of a page adds one.
        let bytes = bytes.len() as u64;
        assert!(u64::from(memory.reads) <= 40 + bytes / 8 + bytes / PAGE, "{}", memory.reads);
        match found {
            Ok(Some(found)) => assert!(found.fde.range.contains(pc), "at {pc:#x}"),
            Err(RemoteError::Unreadable { .. }) => assert!(absent != 0, "at {pc:#x}"),
            _ => {}
        }
        if changes {
            continue;
        }
        match found {
            Err(error) if error.is_not_resident() => {}
            _ => assert_eq!(found, table.find(pc).map_err(RemoteError::Table), "at {pc:#x}"),
        }
        // As a kernel does where it may fault.
        let absent = core::mem::take(&mut memory.absent);
        let again = remote.find(&mut memory, pc);
        assert_eq!(again, table.find(pc).map_err(RemoteError::Table), "at {pc:#x}");
        let row = remote.find_row(&mut memory, pc, &mut window);
        assert_eq!(row, table.find_row(pc).map_err(RemoteError::Table), "at {pc:#x}");
        memory.absent = absent;
    }
}
