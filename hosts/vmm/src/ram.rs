//! The guest's memory: what is where in it, and which pages of it are resident.

use std::sync::atomic::{AtomicBool, Ordering};

use unwind_core::ReadError;
use unwind_guest::paging::{PhysAddr, PhysicalMemory, VmMemory};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::image::GuestImage;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Where the loaded parts of the file are.
const IMAGE: u64 = 0x1_0000;
/// Each vCPU has as much memory of its own from here on.
const OWN: u64 = 0x10_0000;
/// Page tables in it: the root, then three for the lower half of the addresses and three for the upper one.
const TABLES: u64 = 7;
/// The page with the descriptor tables, and then the stacks.
const TABLES_PAGE: u64 = 0x1_0000;
const KERNEL_STACK_PAGES: u64 = 4;
const USER_STACK_PAGES: u64 = 8;

/// As in `guest.S`.
pub(crate) const USER_STACK: u64 = 0x51_0000;
pub(crate) const KERNEL_STACK: u64 = 0xffff_ffff_8011_0000;
const DESCRIPTORS: u64 = 0xffff_ffff_8010_0000;

/// A table of the CPU's: its address, and its last byte's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorTable {
    pub(crate) at: u64,
    pub(crate) limit: u16,
}

pub(crate) const GDT: DescriptorTable = DescriptorTable { at: DESCRIPTORS, limit: 0x4f };
pub(crate) const TSS: DescriptorTable = DescriptorTable { at: DESCRIPTORS + 0x100, limit: 0x67 };
pub(crate) const IDT: DescriptorTable = DescriptorTable { at: DESCRIPTORS + 0x600, limit: 0x3f };

/// Bits of a page table entry.
const PRESENT_WRITABLE: u64 = 3;
const USER: u64 = 4;

/// The memory of a guest.
#[derive(Debug)]
pub struct GuestRam {
    memory: GuestMemoryMmap,
    /// Which pages are resident: a walk asks before it reads.
    resident: Box<[AtomicBool]>,
}

impl GuestRam {
    /// The memory of `vcpus` vCPUs, of which each has page tables and stacks of its own, and the guest in it.
    pub fn new(image: &GuestImage, vcpus: u64) -> Self {
        let len = OWN * (vcpus + 1);
        let range = (GuestAddress(0), usize::try_from(len).expect("64 bits"));
        let memory = GuestMemoryMmap::from_ranges(&[range]).expect("there is so much memory");
        let resident = (0..len / PAGE).map(|_| AtomicBool::new(true)).collect();
        let ram = Self { memory, resident };
        for vcpu in 0..vcpus {
            ram.map_all(image, vcpu);
            ram.write_descriptors(image, vcpu);
        }
        ram
    }

    /// The same as `vm-memory` has it.
    pub const fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Where it is in the monitor, and how many bytes it has.
    pub(crate) fn host_range(&self) -> (u64, u64) {
        let start = self.memory.get_host_address(GuestAddress(0)).expect("it begins at zero");
        (start.expose_provenance() as u64, self.resident.len() as u64 * PAGE)
    }

    /// The root of a vCPU's page tables.
    pub(crate) const fn root(vcpu: u64) -> u64 {
        OWN * (vcpu + 1)
    }

    /// The pages of a vCPU's stacks: the kernel's, and the user's.
    pub(crate) fn stack_pages(vcpu: u64) -> impl Iterator<Item = u64> {
        let start = Self::root(vcpu) + TABLES_PAGE + PAGE;
        (0..KERNEL_STACK_PAGES + USER_STACK_PAGES).map(move |page| start + page * PAGE)
    }

    /// Where a word of a vCPU's stacks is.
    pub(crate) const fn physical(vcpu: u64, at: u64) -> u64 {
        let own = Self::root(vcpu) + TABLES_PAGE + PAGE;
        let kernel = KERNEL_STACK - KERNEL_STACK_PAGES * PAGE;
        if at >= kernel {
            return own + (at - kernel);
        }
        own + KERNEL_STACK_PAGES * PAGE + (at - (USER_STACK - USER_STACK_PAGES * PAGE))
    }

    /// Whether the page of an address is resident. An address past the end is.
    pub(crate) fn is_resident(&self, addr: u64) -> bool {
        let page = usize::try_from(addr / PAGE).ok().and_then(|page| self.resident.get(page));
        page.is_none_or(|page| page.load(Ordering::Acquire))
    }

    pub(crate) fn set_resident(&self, addr: u64, is: bool) {
        self.resident[(addr / PAGE) as usize].store(is, Ordering::Release);
    }

    fn map_all(&self, image: &GuestImage, vcpu: u64) {
        let mut to = IMAGE;
        for (bytes, _, at) in image.segments() {
            self.memory.write_slice(bytes, GuestAddress(to)).expect("it has room");
            for page in 0..(bytes.len() as u64).div_ceil(PAGE) {
                self.map(vcpu, at + page * PAGE, to);
                to += PAGE;
            }
        }
        let mut own = Self::root(vcpu) + TABLES_PAGE;
        let stack = |top, pages| (1..=pages).rev().map(move |page| top - page * PAGE);
        let stacks =
            stack(KERNEL_STACK, KERNEL_STACK_PAGES).chain(stack(USER_STACK, USER_STACK_PAGES));
        for at in [DESCRIPTORS].into_iter().chain(stacks) {
            self.map(vcpu, at, own);
            own += PAGE;
        }
    }

    /// Segments by Linux's numbers, the kernel's stack, and the way into the kernel by `int3`.
    fn write_descriptors(&self, image: &GuestImage, vcpu: u64) {
        let write = |at: u64, words: &[u64]| {
            let own = Self::root(vcpu) + TABLES_PAGE + (at - DESCRIPTORS);
            for (at, &word) in (own..).step_by(8).zip(words) {
                self.memory.write_obj(word, GuestAddress(at)).expect("it has room");
            }
        };
        let (kernel_code, kernel_data) = (0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff);
        let (user_data, user_code) = (0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff);
        write(GDT.at, &[0, 0, kernel_code, kernel_data, 0, user_data, user_code]);
        let (at, limit) = (TSS.at, u64::from(TSS.limit));
        let low = limit | (at & 0xff_ffff) << 16 | 0x8b << 40 | (at >> 24 & 0xff) << 56;
        write(GDT.at + 0x40, &[low, at >> 32]);
        // Its second word is where the kernel's stack begins, four bytes further.
        write(TSS.at, &[KERNEL_STACK << 32, KERNEL_STACK >> 32]);
        let entry = image.addr("kernel_entry");
        let low = entry & 0xffff | 0x10 << 16 | 0xee << 40 | (entry >> 16 & 0xffff) << 48;
        write(IDT.at + 3 * 16, &[low, entry >> 32]);
    }

    /// Maps a page, the user's if it is in the lower half.
    fn map(&self, vcpu: u64, at: u64, to: u64) {
        let is_user = at >> 63 == 0;
        let rights = PRESENT_WRITABLE | if is_user { USER } else { 0 };
        let root = Self::root(vcpu);
        let first = root + PAGE * if is_user { 1 } else { 1 + TABLES / 2 };
        let tables = [root, first, first + PAGE, first + 2 * PAGE];
        let entries = [39, 30, 21, 12].map(|shift| (at >> shift & 511) * 8);
        let next = [tables[1], tables[2], tables[3], to];
        for ((table, entry), next) in tables.into_iter().zip(entries).zip(next) {
            self.memory.write_obj(next | rights, GuestAddress(table + entry)).expect("it has room");
        }
    }
}

/// Guest memory for a walk that must not wait: what is absent is [`ReadError::NotResident`].
#[derive(Clone, Copy, Debug)]
pub struct ResidentMemory<'r>(pub &'r GuestRam);

impl PhysicalMemory for ResidentMemory<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        // A read is within one page.
        if !self.0.is_resident(addr.get()) {
            return Err(ReadError::NotResident);
        }
        VmMemory::new(self.0.memory()).read(addr, buf)
    }
}
