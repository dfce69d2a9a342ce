//! Code that running processes have in memory alone, as their compilers have made it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::ops;
use std::time::{Duration, Instant};

use unwind_core::{Arch, FrameContext, FramePc, Memory, ReadError, Row, RowSource, VirtAddr};
use unwind_target::target::memory::{ProcessMemory, read_by_pieces};
use unwind_x86::{FrameProof, ProvenFrames};

use crate::mapped::address_spaces::Space;
use crate::mapped::generated_code::{ToldBounds, V8Function};

const PAGE: usize = 4096;

type Page = Box<[u8; PAGE]>;

/// How many pages are kept at most: 2 MiB.
const PAGES: usize = 512;

/// How long they are kept: a compiler may make other code in its place.
const KEPT: Duration = Duration::from_millis(200);

/// Pages of it that were read.
#[derive(Debug, Default)]
pub(crate) struct RunningCode {
    /// By process, the generation of what it has mapped, and address; `None` of a page that cannot
    /// be read.
    pages: HashMap<(u32, u64, u64), Option<Page>>,
    /// When the first of them was read.
    since: Option<Instant>,
}

impl RunningCode {
    /// Forgets what may be different by now.
    pub(crate) fn forget_old(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() > KEPT) {
            self.pages.clear();
            self.since = None;
        }
    }

    /// Fills `buf` with what the process of a space has at an address.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if it has nothing there, has ended or must not be read.
    pub(crate) fn read(
        &mut self,
        space: &Space,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), ReadError> {
        read_by_pieces(VirtAddr::new(addr), buf, |addr, rest| {
            let offset = addr % 4096;
            let at = usize::try_from(offset).map_err(|_| ReadError::Invalid)?;
            let page = self.page(space, addr.wrapping_sub(offset)).ok_or(ReadError::Invalid)?;
            let here = rest.iter_mut().zip(page.get(at..).unwrap_or_default());
            Ok(here.map(|(byte, found)| *byte = *found).count())
        })
    }

    fn page(&mut self, space: &Space, start: u64) -> Option<&[u8; PAGE]> {
        if self.pages.len() >= PAGES {
            self.pages.clear();
        }
        self.since.get_or_insert_with(Instant::now);
        let key = (space.process, space.generation, start);
        let page = self.pages.entry(key).or_insert_with(|| read_page(space.process, start));
        page.as_deref()
    }
}

/// How many proofs are kept at most.
const PROOFS: usize = 1 << 16;

type ProofKey = (u32, u64, FramePc, Option<u64>);

/// What is proved of frames by their code.
#[derive(Debug, Default)]
pub(crate) struct KnownProofs {
    /// By process, the generation of what it has mapped, the pc, and where its function was told to start.
    proofs: HashMap<ProofKey, KnownProof>,
}

/// What was proved at a moment.
#[derive(Debug)]
struct KnownProof {
    proof: Option<FrameProof>,
    at: Instant,
}

impl KnownProofs {
    /// What the code at a pc of a process proves, by `prove` if that is not known or may be
    /// different by now. Of a process that has ended it is what it was.
    fn get(
        &mut self,
        key: ProofKey,
        can_be_read: impl FnOnce() -> bool,
        prove: impl FnOnce() -> Option<FrameProof>,
    ) -> Option<FrameProof> {
        let known = self.proofs.get(&key);
        if let Some(known) = known.filter(|known| known.at.elapsed() < KEPT) {
            return known.proof;
        }
        if !can_be_read() {
            return known?.proof;
        }
        if self.proofs.len() >= PROOFS {
            self.proofs.clear();
        }
        let proof = prove();
        self.proofs.insert(key, KnownProof { proof, at: Instant::now() });
        proof
    }
}

/// Rows of code without a table, of a process of a recording, that its instructions prove.
#[derive(Debug)]
pub(crate) struct ProvenRows<'s> {
    pub(crate) space: &'s Space,
    pub(crate) known: &'s mut KnownProofs,
    /// Functions that an engine tells of with a stack.
    pub(crate) told: &'s [ops::Range<u64>],
}

impl<A: Arch> RowSource<A> for ProvenRows<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let Self { space, known, told } = self;
        if !space.find(frame.lookup_addr().get()).is_some_and(|range| range.executable) {
            return Ok(None);
        }
        frame.may_change();
        let (pc, addr) = (frame.pc(), frame.lookup_addr().get());
        let told = told.iter().find(|told| told.contains(&addr));
        let key = (space.process, space.generation, pc, told.map(|told| told.start));
        let mem = RefCell::new(mem);
        let can_be_read = || mem.borrow_mut().read(pc.addr(), &mut [0]).is_ok();
        let prove = || {
            let mem = &mut **mem.borrow_mut();
            match V8Function::at(addr, told, space) {
                Some(function) => ProvenFrames::new(function).proof(A::WORD, pc, mem),
                None => ProvenFrames::new(ToldBounds { space }).proof(A::WORD, pc, mem),
            }
        };
        let proof = known.get(key, can_be_read, prove);
        Ok(proof.and_then(|proof| proof.row(frame.sp(), frame.fp())))
    }
}

fn read_page(process: u32, start: u64) -> Option<Page> {
    let process = i32::try_from(process).ok().filter(|&process| process > 0)?;
    let mut page = Box::new([0; PAGE]);
    let mut memory = ProcessMemory::open(process).ok()?;
    memory.read(VirtAddr::new(start), page.as_mut_slice()).ok()?;
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_a_proof_is_kept_and_outlives_the_process() {
        let mut known = KnownProofs::default();
        let mut mem = unwind_core::SliceMemory::new(VirtAddr::new(0), &RETURNS);
        let pc = FramePc::Exact(VirtAddr::new(0));
        let proof = ProvenFrames::new(()).proof(unwind_core::WordSize::Eight, pc, &mut mem);
        assert!(proof.is_some());
        let key = (1, 1, pc, None);
        assert_eq!(known.get(key, || false, || proof), None, "it has ended before");
        assert_eq!(known.get(key, || true, || proof), proof);
        // It is known.
        assert_eq!(known.get(key, || panic!("read"), || panic!("proved")), proof);
        // After a time it is proved anew, unless the code is gone.
        let long_ago = Instant::now().checked_sub(KEPT.saturating_mul(2));
        let age = |known: &mut KnownProofs| {
            for known in known.proofs.values_mut() {
                known.at = long_ago.unwrap();
            }
        };
        age(&mut known);
        assert_eq!(known.get(key, || false, || panic!("proved")), proof);
        assert_eq!(known.get(key, || true, || None), None);
        assert_eq!(known.get((2, 1, pc, None), || false, || proof), None, "another process");
    }

    /// `ret`, and `int3` up to the end of the page.
    const RETURNS: [u8; PAGE] = {
        let mut page = [0xcc; PAGE];
        page[0] = 0xc3;
        page
    };

    #[test]
    fn m1_code_of_this_process_is_read_across_pages_and_other_addresses_are_not() {
        let bytes = vec![7_u8; 3 * PAGE];
        let space = Space { process: std::process::id(), ..Space::default() };
        let start = u64::try_from(bytes.as_ptr().addr()).unwrap();
        let mut running = RunningCode::default();
        let mut read = [0; PAGE + 100];
        running.read(&space, start, &mut read).unwrap();
        assert!(read.iter().all(|&byte| byte == 7));
        let mut small = [0; 8];
        assert_eq!(running.read(&space, 8, &mut small), Err(ReadError::Invalid));
        assert_eq!(running.read(&space, u64::MAX - 3, &mut small), Err(ReadError::Invalid));
        let nobody = Space { process: 0, ..Space::default() };
        assert_eq!(running.read(&nobody, start, &mut small), Err(ReadError::Invalid));
        // What is kept is bounded.
        for page in 0..u64::try_from(PAGES).unwrap() * 2 {
            _ = running.read(&space, page << 12, &mut small);
        }
        assert!(running.pages.len() <= PAGES);
    }
}
