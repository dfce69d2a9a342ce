//! The call frame information of a corpus's modules, as gimli reads it.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, ParsedEhFrameHdr};

use crate::corpus::Corpus;

/// The bytes of a section.
pub(crate) type Reader = EndianSlice<'static, LittleEndian>;

/// A module with `.eh_frame` and its search table.
pub(crate) struct CallFrames {
    /// Where its code lies.
    text: Range<u64>,
    /// What is added to addresses as linked.
    pub(crate) bias: u64,
    pub(crate) bases: BaseAddresses,
    pub(crate) eh_frame: EhFrame<Reader>,
    pub(crate) header: ParsedEhFrameHdr<Reader>,
}

impl CallFrames {
    /// Those of all modules of a corpus that have them, ascending.
    pub(crate) fn of(corpus: &Corpus) -> Vec<Self> {
        let modules = corpus.covered().map(|module| {
            let tables = module.tables;
            let bases = BaseAddresses::default()
                .set_eh_frame(tables.eh_frame_addr)
                .set_eh_frame_hdr(tables.header_addr);
            let header = EhFrameHdr::new(&tables.header, LittleEndian).parse(&bases, 8).unwrap();
            let eh_frame = EhFrame::new(&tables.eh_frame, LittleEndian);
            Self { text: module.text.clone(), bias: module.bias, bases, eh_frame, header }
        });
        modules.collect()
    }

    /// The module with code at `addr`.
    pub(crate) fn find(modules: &[Self], addr: u64) -> Option<&Self> {
        let at = modules.partition_point(|module| module.text.end <= addr);
        modules.get(at).filter(|module| module.text.start <= addr)
    }
}
