//! From the registers of a vCPU to its stack.

use unwind_cfi::{CfiAbi, CfiSection, CfiSource, CfiTable};
use unwind_core::{Empty, KeyedRange, Module, ModuleMap, RowKey, RowKeys, VirtAddr};
use unwind_guest::orc::{OrcLayout, OrcRows, OrcTable};
use unwind_guest::{GuestRows, GuestWalker};

use crate::image::GuestImage;

/// The tables of the guest's code. The monitor of this example knows its guest.
#[derive(Debug)]
pub struct GuestTables {
    kernel: [OrcTable<'static>; 1],
    user: ModuleMap<CfiTable<'static>, 1>,
}

/// A walker by these tables.
type Walker<'t> = GuestWalker<'t, OrcRows<'t>, CfiSource<'t, 'static, 1>, Empty>;

impl GuestTables {
    /// Those in a file.
    pub fn new(image: &GuestImage) -> Self {
        let (ips, ips_at) = image.section(".orc_unwind_ip");
        let (entries, _) = image.section(".orc_unwind");
        let ips = (ips, VirtAddr::new(ips_at));
        let kernel = OrcTable::from_sections(OrcLayout::Linux6_4, ips, entries);
        let (frames, frames_at) = image.section(".eh_frame");
        let (header, header_at) = image.section(".eh_frame_hdr");
        let frames = CfiSection::eh_frame(frames, frames_at);
        let table = CfiTable::with_search_table(frames, CfiAbi::X86_64, header, header_at);
        let (code, code_at) = image.section(".user");
        let text = VirtAddr::new(code_at)..VirtAddr::new(code_at + code.len() as u64);
        let table = table.expect("well formed").expect("the linker has sorted it");
        let mut user = ModuleMap::new();
        user.add(Module { text, table }).expect("there is room for one");
        Self { kernel: [kernel.expect("well formed")], user }
    }

    /// A walker. Each thread that walks has rows that it keeps.
    pub fn walker<'t>(&'t self, rows: &'t mut GuestRows) -> Walker<'t> {
        GuestWalker::new(rows, OrcRows::new(&self.kernel), CfiSource::new(&self.user), Empty)
    }
}

/// What names the rows of user code: there is one program, in each address space of the guest.
impl RowKeys for &GuestTables {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let Module { text, .. } = self.user.find(addr)?;
        Some(KeyedRange { text: text.clone(), key: RowKey { table: 1, offset: 0 } })
    }
}
