//! What is known of the code that a return address leads to.
use unwind_core::{End, ReturnAddresses, Row, RowCache, StepError, Trace, VirtAddr, Walker};

use crate::toy::{AlwaysFp, START, Script, Stack, Toy, locals, pcs, three_frames};

/// Code ends at 0x3000.
struct NoCodeAbove;

impl ReturnAddresses for NoCodeAbove {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() < 0x3000
    }
}

#[test]
fn a_return_address_that_leads_to_no_code_ends_a_walk_or_asks_the_fallback() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, AlwaysFp).return_addresses(NoCodeAbove);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 2);
    let pc = VirtAddr::new(0x3010);
    assert_eq!(frames.end(), Some(End::Step(StepError::NotCode { pc })));
    // The last byte of a call counts, not the address after it.
    stack.0.insert(0x8038, Some(0x3000));
    let frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.map(|frame| frame.pc.addr().get()).last(), Some(0x3000));
    // A row of the table that leads nowhere leaves it to the fallback.
    stack.0.insert(0x8000, Some(0x5000));
    let script = Script::new([(0x1000, locals(0))]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp).return_addresses(NoCodeAbove);
    let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3000]);
    assert!(frames[1].provenance.is_after_failure());
}

#[test]
fn what_a_signal_interrupted_need_not_be_after_a_call() {
    // All code is below 0x3000 but the byte before the interrupted instruction.
    struct NoCall;
    impl ReturnAddresses for NoCall {
        fn is_code(&mut self, call: VirtAddr) -> bool {
            call.get() < 0x3000 && call.get() & !1 != 0x2000
        }
    }
    let rows = [(0x1000, locals(0).with_signal()), (0x2000, Row::outermost())];
    let mut stack = Stack::new([(0x8000, 0x2001)]);
    let mut walker = Walker::new(Toy, Script::new(rows)).return_addresses(NoCall);
    let mut frames = walker.frames(START, &mut stack);
    assert_eq!(frames.by_ref().map(|frame| frame.pc.addr().get()).last(), Some(0x2001));
    assert_eq!(frames.end(), Some(End::Outermost));
}

/// A tracer that does not tell where its trampoline at 0x3010 leads to.
struct Probed;

impl ReturnAddresses for Probed {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() < 0x3000
    }

    fn is_trampoline(&mut self, ra: VirtAddr) -> bool {
        ra.get() == 0x3010
    }
}

#[test]
fn g17_a_return_address_of_a_tracer_that_does_not_tell_ends_a_walk_and_asks_no_fallback() {
    let (regs, mut stack) = three_frames();
    let pc = VirtAddr::new(0x3010);
    let end = Some(End::Step(StepError::ReturnProbe { pc }));
    let mut walker = Walker::new(Toy, AlwaysFp).return_addresses(Probed);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 2);
    assert_eq!(frames.end(), end);
    let mut trace = Trace::<[_; 8]>::new();
    let mut rows = RowCache::<16>::new();
    let mut walker = Walker::new(Toy, AlwaysFp).cache(&mut rows).return_addresses(Probed);
    for _ in 0..2 {
        walker.trace(regs, &mut stack, &mut trace);
        assert_eq!(trace.len(), 2);
        assert_eq!(trace.end(), Some(End::Step(StepError::ReturnProbe { pc })));
    }
    // The row of the table was right, so nothing is left to the fallback.
    stack.0.insert(0x8000, Some(0x3010));
    let script = Script::new([(0x1000, locals(0))]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp).return_addresses(Probed);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 1);
    assert_eq!(frames.end(), end);
    // Other addresses without code are what they are.
    stack.0.insert(0x8000, Some(0x3011));
    let mut walker = Walker::new(Toy, Script::new([(0x1000, locals(0))])).return_addresses(Probed);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 1);
    assert_eq!(frames.end(), Some(End::Step(StepError::NotCode { pc: VirtAddr::new(0x3011) })));
}

/// Two frames return to the tracer's trampoline; the real addresses are known
/// by the slot.
struct Uretprobes;

impl ReturnAddresses for Uretprobes {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let real = match (ra.get(), slot?.get()) {
            (0x7000, 0x8018) => 0x2010,
            (0x7000, 0x8038) => 0x3010,
            _ => return None,
        };
        Some(VirtAddr::new(real))
    }

    /// The trampoline is none of the target's.
    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() < 0x5000
    }
}

#[test]
fn h11_trampoline_addresses_are_replaced_in_direct_and_deferred_walks() {
    let (regs, mut stack) = three_frames();
    stack.0.insert(0x8018, Some(0x7000));
    stack.0.insert(0x8038, Some(0x7000));
    let mut plain = Walker::new(Toy, AlwaysFp);
    let frames: Vec<_> = plain.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x7000, 0x7000]);

    let mut walker = Walker::new(Toy, AlwaysFp).return_addresses(Uretprobes);
    let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
    assert!(frames[1].provenance.is_after_trampoline());
    assert!(!frames[0].provenance.is_after_trampoline());

    let mut trace = Trace::<[_; 8]>::new();
    walker.trace(regs, &mut stack, &mut trace);
    assert!(trace.pcs().map(VirtAddr::get).eq([0x1010, 0x2010, 0x3010]));
    assert!(trace.frames().nth(2).unwrap().provenance.is_after_trampoline());

    // By cached rows, too.
    let mut cache = RowCache::<16>::new();
    for _ in 0..3 {
        let mut again = Trace::<[_; 8]>::new();
        let walker = Walker::new(Toy, AlwaysFp).cache(&mut cache);
        walker.return_addresses(Uretprobes).trace(regs, &mut stack, &mut again);
        assert!(again.frames().eq(trace.frames()), "{again:?}");
    }
    assert!(cache.stats().hits >= 4, "{:?}", cache.stats());
}
