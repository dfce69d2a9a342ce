//! simple-frame-rs over SFrame tables of version 2.

use std::fmt;

use simple_frame_rs::SFrameSection;
use unwind_snapshot::Snapshot;

use super::stack_word;
use crate::corpus::Corpus;
use crate::{MAX_FRAMES, Unwinder};

/// simple-frame-rs's rows, applied as its own example does.
pub struct SimpleFrame {
    modules: Vec<(std::ops::Range<u64>, SFrameSection<'static>)>,
    frames: Vec<u64>,
}

impl fmt::Debug for SimpleFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimpleFrame").finish_non_exhaustive()
    }
}

impl SimpleFrame {
    /// An unwinder with the modules of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        let modules = corpus.covered().map(|module| {
            let addr = module.tables.sframe_addr.wrapping_add(module.bias);
            let section = SFrameSection::from(&module.tables.sframe_v2, addr).unwrap();
            (module.text.clone(), section)
        });
        Self { modules: modules.collect(), frames: Vec::with_capacity(MAX_FRAMES) }
    }

    /// The pc, stack and frame pointer of the caller.
    fn step(&self, snapshot: &Snapshot<'_>, sp: u64, fp: u64, lookup: u64) -> Option<[u64; 3]> {
        let at = self.modules.partition_point(|(text, _)| text.end <= lookup);
        let (_, section) = self.modules.get(at).filter(|(text, _)| text.start <= lookup)?;
        let fde = section.find_fde(lookup).ok()??;
        let fre = fde.find_fre(section, lookup).ok()??;
        let base = if fre.get_cfa_base_reg_id() == 0 { fp } else { sp };
        let cfa = base.wrapping_add_signed(fre.get_cfa_offset(section).ok()??.into());
        if cfa <= sp {
            return None;
        }
        let ra_at = cfa.wrapping_add_signed(fre.get_ra_offset(section).ok()??.into());
        let ra = stack_word(snapshot, ra_at).filter(|&ra| ra != 0)?;
        let fp = match fre.get_fp_offset(section).ok()? {
            Some(offset) => stack_word(snapshot, cfa.wrapping_add_signed(offset.into()))?,
            None => fp,
        };
        Some([ra, cfa, fp])
    }
}

impl Unwinder for SimpleFrame {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.frames.clear();
        self.frames.push(snapshot.rip);
        let (mut sp, mut fp, mut lookup) = (snapshot.rsp(), snapshot.rbp(), snapshot.rip);
        while self.frames.len() < MAX_FRAMES
            && let Some([ra, caller_sp, caller_fp]) = self.step(snapshot, sp, fp, lookup)
        {
            self.frames.push(ra);
            (sp, fp, lookup) = (caller_sp, caller_fp, ra - 1);
        }
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }
}
