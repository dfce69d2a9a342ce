//! A source or a memory that is lent is used in every way that it offers: a
//! source's coverage, a memory's pairs of words.
#![cfg(not(loom))]
#![cfg(test)]

#[path = "support/no_regs.rs"]
mod no_regs;

use core::convert::Infallible;
use core::sync::atomic::AtomicU64;

use no_regs::{NoRegs, Toy};
use unwind_core::{
    CfaRule, Coverage, Empty, FrameContext, FramePc, Memory, Origin, ReadError, RegRule, Row,
    RowSource, VirtAddr, WordSize,
};

const ADDR: VirtAddr = VirtAddr::new(0x1000);
const ROW: Row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);

const fn frame() -> FrameContext<'static, NoRegs> {
    FrameContext::new(FramePc::Exact(ADDR), 0x20, None, None)
}

/// Answers each question with something that no default does, and notes it.
#[derive(Default)]
struct Noting(Vec<String>);

impl RowSource<Toy> for Noting {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, NoRegs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        self.0.push(format!("row {:?} {:?}", frame.pc(), mem.read_u64(ADDR)));
        Ok(Some(ROW))
    }

    fn generation(&self) -> u64 {
        7
    }
}

impl Memory for Noting {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.push(format!("read {} at {addr}", buf.len()));
        buf.fill(1);
        Ok(())
    }

    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        self.0.push(format!("read_u32 {addr}"));
        Ok(4)
    }

    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        self.0.push(format!("read_u64 {addr}"));
        Ok(8)
    }

    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        self.0.push(format!("words {addr}"));
        Some((addr, &[[8; 8]]))
    }

    fn shared_words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        self.0.push(format!("shared words {addr}"));
        None
    }

    fn lends_words_alone(&self) -> bool {
        true
    }
}

#[test]
fn a_source_that_is_lent_is_asked_everything_itself() {
    fn ask<S: RowSource<Toy, Error = Infallible>>(mut source: S) -> Vec<String> {
        let mut mem = Noting::default();
        let row = source.row(&frame(), &mut mem).unwrap();
        vec![format!("{row:?} {} {:?}", source.generation(), S::COVERAGE), format!("{:?}", mem.0)]
    }
    let mut lent = Noting::default();
    assert_eq!(ask(&mut lent), ask(Noting::default()));
    assert!(lent.0.len() == 1 && lent.0[0].starts_with("row"), "{:?}", lent.0);
}

#[test]
fn a_memory_that_is_lent_is_read_in_its_own_ways() {
    fn read<M: Memory>(mut mem: M) -> String {
        let mut byte = [0];
        mem.read(ADDR, &mut byte).unwrap();
        let words = (mem.read_u32(ADDR), mem.read_u64(ADDR));
        let word = mem.read_word(ADDR, WordSize::Four);
        let read = format!("{byte:?} {words:?} {word:?} {:?}", mem.words(ADDR));
        assert!(mem.shared_words(ADDR).is_none() && mem.lends_words_alone());
        read
    }
    let mut lent = Noting::default();
    assert_eq!(read(&mut lent), read(Noting::default()));
    let expected = [
        "read 1 at 0x1000",
        "read_u32 0x1000",
        "read_u64 0x1000",
        "read_u32 0x1000",
        "words 0x1000",
        "shared words 0x1000",
    ];
    assert_eq!(lent.0, expected);
}

#[test]
fn two_sources_are_asked_in_turn_and_change_when_either_does() {
    let mut mem = Noting::default();
    let (mut first, mut second) = (Noting::default(), Noting::default());
    let mut both = RowSource::<Toy>::or(&mut first, &mut second);
    assert_eq!(both.row(&frame(), &mut mem), Ok(Some(ROW)));
    assert_eq!(both.generation(), 14);
    assert_eq!((first.0.len(), second.0.len()), (1, 0));
    let mut both = RowSource::<Toy>::or(Empty, &mut second);
    assert_eq!(both.row(&frame(), &mut mem), Ok(Some(ROW)));
    assert_eq!(second.0.len(), 1);
}

#[test]
fn a_source_that_says_nothing_else_never_changes_and_is_asked_for_each_frame() {
    struct Plain;
    impl RowSource<Toy> for Plain {
        type Error = Infallible;
        fn row<M: Memory>(
            &mut self,
            _: &FrameContext<'_, NoRegs>,
            _: &mut M,
        ) -> Result<Option<Row>, Infallible> {
            Ok(Some(ROW.with_origin(Origin::Host)))
        }
    }
    assert_eq!((Plain.generation(), <Plain as RowSource<Toy>>::COVERAGE), (0, Coverage::Unknown));
    // Its rows have no name outside of this address space, and only its rows are known.
    assert_eq!(RowSource::<Toy>::row_key(&Plain, ADDR), None);
    let rules = RowSource::<Toy>::register_rules(&mut Plain, &frame(), &mut Noting::default());
    assert_eq!(rules, Ok(None));
}

#[test]
fn a_memory_that_only_reads_has_no_words_to_lend() {
    struct Plain;
    impl Memory for Plain {
        fn read(&mut self, _: VirtAddr, _: &mut [u8]) -> Result<(), ReadError> {
            Ok(())
        }
    }
    assert!(Plain.words(ADDR).is_none() && Plain.shared_words(ADDR).is_none());
    assert!(!Plain.lends_words_alone());
}
