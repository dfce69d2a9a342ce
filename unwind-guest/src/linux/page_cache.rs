//! Pages of files that a task has mapped and has not touched.

use unwind_core::{Memory, VirtAddr};
use unwind_x86::paging::PhysAddr;

use crate::linux::error::LinuxError;
use crate::linux::window::{read, read_u64};

/// How deep the trees of mappings and of pages may be.
const DEPTH_LIMIT: u32 = 16;

/// How deep a red-black tree of mappings may be: a task has 65,530 at most unless its administrator has it otherwise.
const BINARY_DEPTH_LIMIT: u32 = 40;

const PAGE: u64 = 4096;
/// The size of what the kernel keeps of a page, and where that has the page's place in its file.
const PAGE_STRUCT: u64 = 64;
const PAGE_INDEX: u32 = 32;

/// A bit of a mapping.
const HUGETLB: u64 = 1 << 22;

/// Where the kernel's structures have the mappings of a task and the pages of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageCacheLayout {
    pub(crate) pages: PageArray,
    /// Of a task, its address space; of that, the tree of mappings.
    pub(crate) mm: u32,
    pub(crate) mappings: MappingTree,
    /// Of a mapping, which place in which file.
    pub(crate) place: u32,
    pub(crate) file: u32,
    /// What bits it has, which follow those of its pages.
    pub(crate) protection: Option<u32>,
    /// Of a file, its pages; of these, the head of the tree.
    pub(crate) mapping: u32,
    pub(crate) head: u32,
    /// Of a node of that tree.
    pub(crate) shift: u32,
    pub(crate) slots: u32,
    /// Which bit of what the kernel keeps of a page says that the file's bytes are there.
    pub(crate) uptodate: Option<u32>,
}

/// Where the array begins of what the kernel keeps of all pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PageArray {
    /// The variable there tells.
    Variable(u64),
    /// There.
    Constant(u64),
}

impl PageArray {
    /// The one that the code of `vmalloc_to_pfn` has, which ends with the place of a page in it. `None` if it has
    /// none, or of elements of another size.
    pub(crate) fn of_code<M: Memory>(vmalloc_to_pfn: u64, mem: &mut M) -> Option<Self> {
        /// `sub rax, [rip + n]`, before the four bytes of `n`; `mov rdx, n` before the eight; `sar rax, 6`.
        const SUB: [u8; 3] = [0x48, 0x2b, 0x05];
        const MOV: [u8; 2] = [0x48, 0xba];
        const SAR: [u8; 4] = [0x48, 0xc1, 0xf8, 6];
        let mut code = [0; 64];
        read(mem, vmalloc_to_pfn, &mut code).ok()?;
        code.windows(4).any(|bytes| bytes == SAR).then_some(())?;
        (0_u64..).zip(code.windows(10)).find_map(|(at, bytes)| {
            if let Some([a, b, c, d, ..]) = bytes.strip_prefix(&SUB) {
                let above = i32::from_le_bytes([*a, *b, *c, *d]).into();
                let next = vmalloc_to_pfn.wrapping_add(at).wrapping_add(7);
                return Some(Self::Variable(next.wrapping_add_signed(above)));
            }
            let added = bytes.strip_prefix(&MOV)?.first_chunk()?;
            Some(Self::Constant(u64::from_le_bytes(*added).wrapping_neg()))
        })
    }
}

/// Where an address space has the tree of its mappings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MappingTree {
    /// A maple tree: its root. Since Linux 6.1.
    Maple(u32),
    /// A red-black tree: its root, and of a mapping its node. Before that.
    RedBlack { root: u32, node: u32 },
}

impl PageCacheLayout {
    /// Where the page is that an access to this address would bring, if the kernel has it in memory: of a file that the
    /// task has mapped there.
    pub(crate) fn find<M: Memory>(
        &self,
        task: u64,
        addr: u64,
        mem: &mut M,
    ) -> Result<Option<PhysAddr>, LinuxError> {
        let space = read_u64(mem, field(task, self.mm))?;
        let Some(mapping) = self.mappings.find(space, addr, mem)? else { return Ok(None) };
        // The first two words of each.
        let (start, end) = (read_u64(mem, mapping)?, read_u64(mem, mapping.wrapping_add(8))?);
        let file = read_u64(mem, field(mapping, self.file))?;
        let flags = match self.protection {
            Some(protection) => read_u64(mem, field(field(mapping, protection), 8))?,
            None => 0,
        };
        // Large pages of their own file system are counted in other units.
        if !(start..end).contains(&addr) || file == 0 || flags & HUGETLB != 0 {
            return Ok(None);
        }
        let place = read_u64(mem, field(mapping, self.place))?;
        let index = (addr.wrapping_sub(start) / PAGE).wrapping_add(place);
        let pages = read_u64(mem, field(file, self.mapping))?;
        let found = self.page(field(pages, self.head), index, mem)?;
        let Some((first, after)) = found else { return Ok(None) };
        // What is being read has what was there before.
        if let Some(bit) = self.uptodate {
            let flags = read_u64(mem, first)?;
            if flags.checked_shr(bit).unwrap_or(0) & 1 == 0 {
                return Ok(None);
            }
        }
        // Before 6.1 each page of a piece may stand for the first one.
        if matches!(self.mappings, MappingTree::RedBlack { .. }) {
            let place = read_u64(mem, field(first, PAGE_INDEX))?;
            if place.wrapping_add(after) != index {
                return Ok(None);
            }
        }
        let page = first.wrapping_add(after.wrapping_mul(PAGE_STRUCT));
        let array = match self.pages {
            PageArray::Variable(addr) => read_u64(mem, addr)?,
            PageArray::Constant(addr) => addr,
        };
        let Some(at) = page.checked_sub(array).filter(|at| at % PAGE_STRUCT == 0) else {
            return Ok(None);
        };
        Ok(Some(PhysAddr::new((at / PAGE_STRUCT).wrapping_mul(PAGE))))
    }

    /// What the kernel keeps of a page of a file, by the tree of these (`xarray`): where that is for the first page of
    /// the same piece, and how many pages follow before this one.
    fn page<M: Memory>(
        &self,
        head: u64,
        index: u64,
        mem: &mut M,
    ) -> Result<Option<(u64, u64)>, LinuxError> {
        const SLOTS: u64 = 64;
        let mut entry = read_u64(mem, head)?;
        let mut is_root = true;
        for _ in 0..DEPTH_LIMIT {
            if !is_node(entry) {
                // Only the first page is there without a node.
                return Ok((is_root && index == 0 && is_pointer(entry)).then_some((entry, 0)));
            }
            let node = entry.wrapping_sub(2);
            let mut shift = [0];
            read(mem, field(node, self.shift), &mut shift)?;
            let shift = u32::from(u8::from_le_bytes(shift));
            let Some(rest) = index.checked_shr(shift) else { return Ok(None) };
            if is_root && rest >= SLOTS {
                return Ok(None);
            }
            is_root = false;
            let mut slot = rest % SLOTS;
            let slots = field(node, self.slots);
            let mut read_slot = |slot: u64| read_u64(mem, slots.wrapping_add(slot.wrapping_mul(8)));
            entry = read_slot(slot)?;
            // More than one page may be in one piece, which has the first one's slot.
            if entry & 3 == 2 && entry >> 2 < SLOTS {
                slot = entry >> 2;
                entry = read_slot(slot)?;
            }
            if is_node(entry) {
                continue;
            }
            if !is_pointer(entry) {
                return Ok(None);
            }
            let in_node = index & !u64::MAX.checked_shl(shift.saturating_add(6)).unwrap_or(0);
            let first = slot.checked_shl(shift).unwrap_or(0);
            return Ok(Some((entry, in_node.wrapping_sub(first))));
        }
        Ok(None)
    }
}

impl MappingTree {
    /// The mapping at an address or another one; `None` if there is none at that.
    fn find<M: Memory>(
        &self,
        space: u64,
        addr: u64,
        mem: &mut M,
    ) -> Result<Option<u64>, LinuxError> {
        match *self {
            Self::Maple(root) => find_in_maple(read_u64(mem, field(space, root))?, addr, mem),
            Self::RedBlack { root, node } => {
                find_in_red_black(read_u64(mem, field(space, root))?, node, addr, mem)
            }
        }
    }
}

/// By a red-black tree whose nodes have their right and left one after a word of their own.
fn find_in_red_black<M: Memory>(
    root: u64,
    node_at: u32,
    addr: u64,
    mem: &mut M,
) -> Result<Option<u64>, LinuxError> {
    let mut node = root;
    for _ in 0..BINARY_DEPTH_LIMIT {
        if node == 0 {
            break;
        }
        let mapping = node.wrapping_sub(field(0, node_at));
        let (start, end) = (read_u64(mem, mapping)?, read_u64(mem, field(mapping, 8))?);
        if (start..end).contains(&addr) {
            return Ok(Some(mapping));
        }
        let (right, left) = (8, 16);
        node = read_u64(mem, field(node, if addr < start { left } else { right }))?;
    }
    Ok(None)
}

/// The mapping at an address or the next one, by a maple tree.
fn find_in_maple<M: Memory>(root: u64, addr: u64, mem: &mut M) -> Result<Option<u64>, LinuxError> {
    /// Pivots and slots: 15 and 16 or, with gaps, 9 and 10.
    const LEAF: u64 = 1;
    const RANGES: u64 = 2;
    const RANGES_WITH_GAPS: u64 = 3;
    let mut entry = root;
    for _ in 0..DEPTH_LIMIT {
        let (node, kind) = (entry & !0xff, entry >> 3 & 0xf);
        let pivots: u64 = match kind {
            LEAF | RANGES => 15,
            RANGES_WITH_GAPS => 9,
            _ => return Ok(None),
        };
        let word = |number: u64| node.wrapping_add(number.wrapping_mul(8));
        let mut slot = 0;
        while slot < pivots {
            let pivot = read_u64(mem, word(slot.wrapping_add(1)))?;
            if pivot >= addr || (pivot == 0 && slot > 0) {
                break;
            }
            slot = slot.wrapping_add(1);
        }
        entry = read_u64(mem, word(pivots.wrapping_add(1).wrapping_add(slot)))?;
        if kind == LEAF {
            return Ok(is_pointer(entry).then_some(entry));
        }
    }
    Ok(None)
}

const fn field(structure: u64, offset: u32) -> u64 {
    let [a, b, c, d] = offset.to_le_bytes();
    structure.wrapping_add(u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0]))
}

/// Entries of trees: a node of one, or what it is there for.
const fn is_node(entry: u64) -> bool {
    entry & 3 == 2 && entry > PAGE
}

const fn is_pointer(entry: u64) -> bool {
    entry & 3 == 0 && entry > PAGE
}

/// The page of an address.
pub(crate) const fn page_of(addr: VirtAddr) -> u64 {
    addr.get() & !(PAGE - 1)
}
