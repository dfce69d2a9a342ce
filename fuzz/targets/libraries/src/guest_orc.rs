//! Any registers, ORC entries, stack and page tables of a guest.

use arbitrary::{Arbitrary, Unstructured};
use unwind_core::{Empty, Memory, ReadError, SliceMemory, VirtAddr};
use unwind_guest::orc::{OrcLayout, OrcRows, OrcTable};
use unwind_guest::paging::{PhysAddr, PhysicalMemory};
use unwind_guest::{
    GuestRows, GuestStack, GuestWalker, KernelCode, KernelFramePointers, KernelRows, UserCode,
};
use unwind_guest::{Segment, VcpuRegisters};

/// What a guest is made of.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    layout: u8,
    /// Steps from one entry to the next, and the entries.
    entries: Vec<(u16, [u8; 6])>,
    /// An address in the code.
    addr: u32,
    /// Whether the mode is that of a 64-bit kernel, whatever the registers say.
    is_usual: bool,
    general: [u64; 16],
    others: [u64; 6],
    segments: [(u16, u8, bool, bool); 2],
    ram: &'a [u8],
}

const IPS_AT: u64 = 0xffff_ffff_8200_0000;
const ENTRIES_AT: u64 = IPS_AT + 0x10_0000;
const CODE: u64 = 0xffff_ffff_8100_0000;
/// The most frames of either part.
const FRAMES: usize = 24;

/// Physical memory that repeats the input, and counts what is read.
struct Ram<'a> {
    bytes: &'a [u8],
    reads: usize,
}

impl PhysicalMemory for Ram<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        let len = u64::try_from(self.bytes.len()).unwrap();
        if len == 0 || addr.get() >> 40 != 0 {
            return Err(ReadError::Invalid);
        }
        for (byte, at) in buf.iter_mut().zip(addr.get()..) {
            *byte = self.bytes[usize::try_from(at % len).unwrap()];
        }
        Ok(())
    }
}

/// The guest's memory that has its tables, and nothing else.
struct Tables<'a>(&'a [u8], &'a [u8]);

impl Memory for Tables<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let parts = [
            SliceMemory::new(VirtAddr::new(IPS_AT), self.0),
            SliceMemory::new(VirtAddr::new(ENTRIES_AT), self.1),
        ];
        (&parts[..]).read(addr, buf)
    }
}

/// A search finds what a scan does, in a file and in memory. A walk is bounded, and what it says agrees.
pub(crate) fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let layouts =
        [OrcLayout::Linux4_14, OrcLayout::Linux6_3, OrcLayout::Linux6_4, OrcLayout::Linux7_2];
    let layout = layouts[usize::from(input.layout) % 4];
    let (mut starts, mut ips, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = CODE;
    for (index, (step, entry)) in (0..).zip(&input.entries) {
        start += u64::from(*step);
        starts.push(start);
        let offset = start.wrapping_sub(IPS_AT + index * 4).cast_signed();
        ips.extend(i32::try_from(offset).unwrap().to_le_bytes());
        entries.extend(entry);
    }
    let at = VirtAddr::new;
    let table = OrcTable::from_sections(layout, (&ips, at(IPS_AT)), &entries).unwrap();
    let remote = OrcTable::in_memory(layout, at(IPS_AT), at(ENTRIES_AT), table.len());
    let mut memory = Tables(&ips, &entries);
    let mut none = SliceMemory::new(at(0), &[]);
    let addrs = starts.iter().copied().chain([CODE.wrapping_add(input.addr.into()), 0, u64::MAX]);
    for addr in addrs {
        let last = starts.iter().rposition(|start| *start <= addr);
        let last = last.map(|last| u32::try_from(last).unwrap());
        let scanned = last.and_then(|last| table.get(last, &mut none).unwrap());
        let found = table.find(at(addr), &mut none).unwrap();
        assert_eq!(found, scanned.map(|(_, entry)| entry), "{addr:#x}");
        assert_eq!(remote.find(at(addr), &mut memory), Ok(found), "{addr:#x}");
    }
    let _ = OrcLayout::detect(input.entries.iter().map(|(_, entry)| *entry));

    let vcpu = vcpu(&input);
    let in_guest = OrcTable::in_memory(layout, at(input.others[0]), at(input.others[1]), 1 << 20);
    walk(OrcRows::new(&[table]), &vcpu, input.ram);
    walk(OrcRows::new(&[in_guest, table]), &vcpu, input.ram);
    let middle = at(CODE.wrapping_add(input.addr.into()));
    let code = KernelCode {
        image: at(CODE)..at(CODE + (1 << 30)),
        entry: at(CODE)..middle,
        thunks: middle..at(middle.get().wrapping_add(0x100)),
        traced_returns: [at(CODE + 0x100); 4],
    };
    for rows in [KernelFramePointers::new(), KernelFramePointers::new().with_code(&code)] {
        walk(rows, &vcpu, input.ram);
    }
}

fn vcpu(input: &Input<'_>) -> VcpuRegisters {
    let [rip, rflags, cr0, cr3, cr4, efer] = input.others;
    let [cs, ss] = input.segments.map(|(selector, dpl, l, db)| {
        let base = if l { 0 } else { selector.into() };
        Segment { base, selector, dpl, l, db }
    });
    let vcpu = VcpuRegisters { general: input.general, rip, rflags, cs, ss, cr0, cr3, cr4, efer };
    if !input.is_usual {
        return vcpu;
    }
    let (cs, ss) = (Segment { l: true, ..cs }, Segment { dpl: 0, ..ss });
    let rip = CODE.wrapping_add(input.addr.into());
    VcpuRegisters { rip, cs, ss, cr0: 0x8005_0033, cr4: 0x6b0, efer: 0xd01, ..vcpu }
}

fn walk(kernel: impl KernelRows, vcpu: &VcpuRegisters, bytes: &[u8]) {
    let mut ram = Ram { bytes, reads: 0 };
    let mut rows = GuestRows::<16>::new();
    let mut walker = GuestWalker::new(&mut rows, kernel, Empty, Empty);
    let mut stack = GuestStack::<FRAMES>::new();
    walker.walk(vcpu, &mut ram, &mut stack);
    // Each frame takes a few lookups and words, each of them a translation at most.
    assert!(ram.reads <= 2 * FRAMES * (2 * 33 + 200) * 6, "{}", ram.reads);
    let lens = [stack.kernel(), stack.user()].map(|trace| trace.map_or(0, |trace| trace.len()));
    assert!(lens.iter().all(|len| *len <= FRAMES), "{lens:?}");
    assert!(!stack.is_complete() || lens.iter().any(|len| *len > 0));
    match stack.user_code() {
        UserCode::Running => assert!(stack.kernel().is_none() && vcpu.is_user()),
        UserCode::Entered => assert!(stack.kernel().is_some() && stack.user().is_some()),
        _ => assert!(stack.user().is_none()),
    }
}
