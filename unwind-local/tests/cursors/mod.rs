//! Cursors that find frames ahead, beside one that is asked for registers in each frame.

use unwind_core::TraceFrame;
use unwind_local::{Cursor, DwarfReg, End};

/// What a cursor tells of a frame.
#[derive(Debug, PartialEq)]
pub(crate) struct Known {
    frame: TraceFrame,
    sp: u64,
    is_trampoline: bool,
    registers: [Option<u64>; 16],
}

fn registers(cursor: &mut Cursor) -> [Option<u64>; 16] {
    std::array::from_fn(|number| cursor.register(DwarfReg(u8::try_from(number).unwrap())))
}

/// The frames from there on, each with its registers, why there are no more, and whether they
/// are all.
fn with_registers(mut cursor: Cursor) -> (Vec<Known>, End, bool) {
    let mut frames = Vec::new();
    let end = loop {
        // Before anything else: it finds no frames ahead then.
        let registers = registers(&mut cursor);
        let (Some(frame), Some(sp)) = (cursor.frame(), cursor.sp()) else { panic!("no frame") };
        let is_trampoline = cursor.is_signal_trampoline();
        frames.push(Known { frame, sp, is_trampoline, registers });
        if !cursor.step() {
            break cursor.end().unwrap();
        }
    };
    (frames, end, cursor.is_complete())
}

/// Walks with one that is asked for registers in some frames, and returns it.
fn asked(mut cursor: Cursor, frames: &[Known], mut in_frame: impl FnMut(usize) -> bool) -> Cursor {
    for (number, known) in frames.iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(cursor.frame(), Some(known.frame));
            assert_eq!((cursor.pc(), cursor.sp()), (Some(known.frame.pc), Some(known.sp)));
            assert_eq!(cursor.is_signal_trampoline(), known.is_trampoline, "{known:x?}");
            if !in_frame(number) {
                break;
            }
            assert_eq!(registers(&mut cursor), known.registers, "{number} {known:x?}");
        }
        assert!(cursor.end().is_none() && !cursor.is_complete());
        let has_caller = cursor.step();
        assert!(has_caller || number + 1 == frames.len(), "{number} {known:x?}");
        if !has_caller {
            break;
        }
    }
    cursor
}

/// Walks from there in many ways. Returns how many frames there are, and why there are no more.
pub(crate) fn compare_ways(start: Cursor) -> (usize, End) {
    let (frames, end, is_complete) = with_registers(start);
    let is_same = |cursor: &mut Cursor| {
        assert_eq!((cursor.end(), cursor.is_complete()), (Some(end), is_complete));
        assert!(cursor.frame().is_none() && cursor.pc().is_none() && cursor.sp().is_none());
        assert!(cursor.register(DwarfReg(3)).is_none() && !cursor.is_signal_trampoline());
        assert!(!cursor.step() && cursor.end() == Some(end));
    };
    is_same(&mut asked(start, &frames, |_| false));
    is_same(&mut asked(start, &frames, |number| number % 2 == 1));
    is_same(&mut asked(start, &frames, |number| number == frames.len() / 2));
    is_same(&mut asked(start, &frames, |number| number + 1 == frames.len()));
    let mut random = 1_u64;
    let mut cursor = start;
    for at in 0..frames.len() {
        // A copy in each frame, and all of what it has found ahead with it.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (ahead, every) = ((random >> 33) % 40, (random >> 40) % 20 + 1);
        if at < 60 || at % 29 == 0 {
            let end = frames.len().min(at + 1 + usize::try_from(ahead).unwrap());
            let rest = &frames[at..end];
            let every = usize::try_from(every).unwrap();
            asked(cursor, rest, |number| number % every == every - 1);
            asked(cursor, rest, |number| number == 0);
        }
        assert_eq!(cursor.step(), at + 1 < frames.len());
    }
    is_same(&mut cursor);
    (frames.len(), end)
}
