//! framehop, without allocation while it unwinds.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{
    ExplicitModuleSectionInfo, FrameAddress, Module, MustNotAllocateDuringUnwind, Unwinder as _,
};
use unwind_snapshot::Snapshot;

use super::stack_word;
use crate::corpus::{self, Corpus};
use crate::{MAX_FRAMES, Unwinder};

type Cache = CacheX86_64<MustNotAllocateDuringUnwind>;

/// framehop over `.eh_frame` and `.eh_frame_hdr`.
pub struct Framehop {
    unwinder: UnwinderX86_64<&'static [u8], MustNotAllocateDuringUnwind>,
    cache: Cache,
    frames: Vec<u64>,
    is_complete: bool,
}

impl std::fmt::Debug for Framehop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Framehop").finish_non_exhaustive()
    }
}

impl Framehop {
    /// An unwinder with the modules of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        let frames = Vec::with_capacity(MAX_FRAMES);
        let unwinder = UnwinderX86_64::new();
        let mut new = Self { unwinder, cache: Cache::new_in(), frames, is_complete: false };
        corpus.covered().for_each(|module| new.add(module));
        new
    }

    /// Adds a module.
    pub fn add(&mut self, module: &corpus::Module) {
        let tables = module.tables;
        let range =
            |addr: u64, bytes: &[u8]| Some(addr..addr + u64::try_from(bytes.len()).unwrap());
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: range(tables.eh_frame_addr, &tables.eh_frame),
            eh_frame: Some(&*tables.eh_frame),
            eh_frame_hdr_svma: range(tables.header_addr, &tables.header),
            eh_frame_hdr: Some(&*tables.header),
            ..Default::default()
        };
        let text = module.text.clone();
        self.unwinder.add_module(Module::new(tables.path.clone(), text, module.bias, sections));
    }

    /// Removes a module.
    pub fn remove(&mut self, module: &corpus::Module) {
        self.unwinder.remove_module(module.text.start);
    }

    /// How many lookups its cache answered, and how many it did not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let stats = self.cache.stats();
        (stats.hits(), stats.misses())
    }

    /// Walks the stack at pc, stack and frame pointer; returns how many frames
    /// there are.
    #[inline]
    pub fn walk_from(
        &mut self,
        [pc, sp, fp]: [u64; 3],
        mut read: impl FnMut(u64) -> Result<u64, ()>,
    ) -> usize {
        self.frames.clear();
        let regs = UnwindRegsX86_64::new(pc, sp, fp);
        let mut frames = self.unwinder.iter_frames(pc, regs, &mut self.cache, &mut read);
        self.is_complete = false;
        while self.frames.len() < MAX_FRAMES {
            match frames.next() {
                Ok(Some(FrameAddress::InstructionPointer(pc))) => self.frames.push(pc),
                Ok(Some(FrameAddress::ReturnAddress(ra))) => self.frames.push(ra.get()),
                Ok(None) => {
                    self.is_complete = true;
                    break;
                }
                Err(_) => break,
            }
        }
        self.frames.len()
    }
}

impl Unwinder for Framehop {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let regs = [snapshot.rip, snapshot.rsp(), snapshot.rbp()];
        self.walk_from(regs, |addr| stack_word(snapshot, addr).ok_or(()))
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }

    fn is_complete(&self) -> Option<bool> {
        Some(self.is_complete)
    }

    fn forget(&mut self) {
        self.cache = Cache::new_in();
    }
}
