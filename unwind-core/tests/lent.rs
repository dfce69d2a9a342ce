//! A source or a memory that is lent is used in every way that it offers: a
//! cache that is lent stays as fast, a memory that reads pairs of words too.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::std_instead_of_core, reason = "tests")]

#[path = "support/no_regs.rs"]
mod no_regs;

use core::convert::Infallible;

use no_regs::{NoRegs, Toy};
use unwind_core::{
    CfaRule, FrameContext, FramePc, KeptRow, Memory, Origin, ReadError, RegRule, Row, RowSource,
    ShortRow, VirtAddr, WordSize,
};

const ADDR: VirtAddr = VirtAddr::new(0x1000);
const ROW: Row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
const FRAME: FrameContext<'_, NoRegs> =
    FrameContext { pc: FramePc::Exact(ADDR), sp: 0x20, fp: None, registers: None };

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
        self.0.push(format!("row {:?} {:?}", frame.pc, mem.read_u64(ADDR)));
        Ok(Some(ROW))
    }

    fn begin(&mut self) {
        self.0.push("begin".to_owned());
    }

    fn quick(&mut self, addr: VirtAddr, _: KeptRow) -> Option<KeptRow> {
        self.0.push(format!("quick {addr}"));
        Some(KeptRow::new(ShortRow::new(&ROW, WordSize::Eight).unwrap()))
    }

    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, NoRegs>, mem: &mut M) -> bool {
        self.0.push(format!("fetch {:?} {:?}", frame.pc, mem.read_u64(ADDR)));
        true
    }

    fn used(&mut self, _: KeptRow) {
        self.0.push("used".to_owned());
    }

    fn answered(&mut self, count: usize) {
        self.0.push(format!("answered {count}"));
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
}

#[test]
fn a_source_that_is_lent_is_asked_everything_itself() {
    fn ask<S: RowSource<Toy, Error = Infallible>>(mut source: S) -> Vec<String> {
        let mut mem = Noting::default();
        source.begin();
        let row = source.row(&FRAME, &mut mem).unwrap();
        let quick = source.quick(ADDR, KeptRow::NONE);
        let fetched = source.fetch(&FRAME, &mut mem);
        source.used(KeptRow::NONE);
        source.answered(3);
        vec![format!("{row:?} {quick:?} {fetched} {}", source.generation()), format!("{:?}", mem.0)]
    }
    let mut lent = Noting::default();
    assert_eq!(ask(&mut lent), ask(Noting::default()));
    let asked = lent.0.iter().map(|line| line.split(' ').next().unwrap());
    assert!(asked.eq(["begin", "row", "quick", "fetch", "used", "answered"]), "{:?}", lent.0);
}

#[test]
fn a_memory_that_is_lent_is_read_in_its_own_ways() {
    fn read<M: Memory>(mut mem: M) -> String {
        let mut byte = [0];
        mem.read(ADDR, &mut byte).unwrap();
        let words = (mem.read_u32(ADDR), mem.read_u64(ADDR));
        let word = mem.read_word(ADDR, WordSize::Four);
        format!("{byte:?} {words:?} {word:?} {:?}", mem.words(ADDR))
    }
    let mut lent = Noting::default();
    assert_eq!(read(&mut lent), read(Noting::default()));
    let expected = [
        "read 1 at 0x1000",
        "read_u32 0x1000",
        "read_u64 0x1000",
        "read_u32 0x1000",
        "words 0x1000",
    ];
    assert_eq!(lent.0, expected);
}

#[test]
fn a_source_without_a_cache_has_nothing_at_hand_and_never_changes() {
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
    let mut mem = Noting::default();
    assert!(Plain.quick(ADDR, KeptRow::NONE).is_none());
    assert!(!Plain.fetch(&FRAME, &mut mem));
    assert_eq!((Plain.generation(), mem.0.len()), (0, 0));
}

#[test]

fn a_chain_has_at_hand_what_its_first_source_has_and_begins_with_both() {
    let (mut first, mut second) = (Noting::default(), Noting::default());
    let mut mem = Noting::default();
    let mut chain = RowSource::<Toy>::or(&mut first, &mut second);
    chain.begin();
    assert!(chain.quick(ADDR, KeptRow::NONE).is_some());
    assert!(chain.fetch(&FRAME, &mut mem));
    chain.used(KeptRow::NONE);
    chain.answered(3);
    // It changes when either does.
    assert_eq!(chain.generation(), 14);
    let asked = first.0.iter().map(|line| line.split(' ').next().unwrap());
    assert!(asked.eq(["begin", "quick", "fetch", "used", "answered"]), "{:?}", first.0);
    assert_eq!(second.0, ["begin"]);
}

#[test]
fn a_memory_that_only_reads_has_no_words_at_hand() {
    struct Plain;
    impl Memory for Plain {
        fn read(&mut self, _: VirtAddr, _: &mut [u8]) -> Result<(), ReadError> {
            Ok(())
        }
    }
    assert_eq!(Plain.words(ADDR), None);
}
