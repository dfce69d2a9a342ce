//! The reference on stacks that were made up, and verdicts on walks that are wrong.

#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a test")]

use testdata::{CfiBuilder, Cie};
use unwind_benches::corpus::{Corpus, Module, Tables};
use unwind_benches::finding::Kind;
use unwind_benches::known::Known;
use unwind_benches::reference::End;
use unwind_benches::verdict::{Verdict, judge, more_than_ours};
use unwind_benches::{Framehop, Reference, Report, Unwind, Unwinder};
use unwind_snapshot::Snapshot;

const SP: u64 = 0x7000_0000;
const RBX: usize = 3;
const RBP: usize = 6;
const RSP: usize = 7;

/// Instructions of call frame information.
const CFA_RBP_16: [u8; 5] = [0x0c, 6, 16, 0x86, 2];
const CFA_RBX_16: [u8; 3] = [0x0c, 3, 16];
const RBP_AT_CFA_16: [u8; 2] = [0x86, 2];
const NO_CALLER: [u8; 2] = [0x07, 16];

/// A program of functions of 256 bytes, one after another, each with its
/// instructions of call frame information; `None` has no such information.
fn program(functions: &[Option<&[u8]>]) -> Corpus {
    let mut cfi = CfiBuilder::eh_frame(0x10_0000);
    let cie = cfi.cie(&Cie::amd64());
    let signal = Cie { augmentation: b"zRS", ..Cie::amd64() };
    let signal = cfi.cie(&signal);
    for (number, instructions) in (0..).zip(functions) {
        let Some(instructions) = instructions else { continue };
        let cie = if *instructions == SIGNAL { signal } else { cie };
        cfi.fde(cie, pc(number), 0x100, instructions);
    }
    cfi.raw(&[0; 4]);
    let tables = Box::leak(Box::new(Tables::new("made-up", 0x10_0000, cfi.build())));
    let text = pc(0)..pc(functions.len().try_into().unwrap());
    let modules = vec![Module { text, bias: 0, tables }];
    Corpus { name: "made-up".into(), snapshots: Vec::new(), modules }
}

/// The start of a function.
fn pc(number: u64) -> u64 {
    0x1000 + number * 0x100
}

/// A return address inside a function.
fn inside(number: u64) -> u64 {
    pc(number) + 0x40
}

/// The word `index` of the stack.
fn slot(index: u64) -> u64 {
    SP + 8 * index
}

/// A thread in the middle of the first function, with `words` from its stack
/// pointer on.
fn thread(words: &[u64]) -> Snapshot<'static> {
    let stack = words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().leak();
    let mut gpr = [0; 16];
    gpr[RSP] = SP;
    let (rip, stack_start) = (inside(0), SP);
    let (space, process, thread, time, is_whole) = (0, 1, 1, 0, true);
    Snapshot { space, process, thread, time, rip, gpr, is_whole, stack_start, stack }
}

fn walk(corpus: &Corpus, snapshot: &Snapshot<'_>) -> (Vec<u64>, usize, End) {
    let mut reference = Reference::new(corpus);
    reference.walk(snapshot);
    (reference.frames(), reference.certain(), reference.end())
}

#[test]
fn a1_a_register_that_an_epilogue_took_from_the_stack_has_its_value_again() {
    // The slot of rbp is at CFA-16, below the stack pointer: not captured.
    let corpus = program(&[Some(&RBP_AT_CFA_16), Some(&CFA_RBP_16), Some(&NO_CALLER)]);
    let mut snapshot = thread(&[inside(1), 0, 0x1234, inside(2)]);
    snapshot.gpr[RBP] = slot(2);
    let expected = vec![inside(0), inside(1), inside(2)];
    assert_eq!(walk(&corpus, &snapshot), (expected, 3, End::Outermost));
}

#[test]
fn a1_a_register_that_is_lost_ends_a_walk_only_where_a_row_needs_it() {
    // Undefined: rbx.
    let loses_rbx: &[u8] = &[0x07, 3];
    let words = [inside(1), inside(2), inside(3), 0];
    let harmless = program(&[Some(loses_rbx), Some(&[]), Some(&[]), Some(&NO_CALLER)]);
    let expected = vec![inside(0), inside(1), inside(2), inside(3)];
    assert_eq!(walk(&harmless, &thread(&words)), (expected, 4, End::Outermost));
    let needed = program(&[Some(loses_rbx), Some(&[]), Some(&CFA_RBX_16), Some(&NO_CALLER)]);
    let expected = vec![inside(0), inside(1), inside(2)];
    assert_eq!(walk(&needed, &thread(&words)), (expected, 3, End::UnknownRegister(3)));
}

#[test]
fn the_reference_carries_every_register_that_functions_keep() {
    // CFA = rbx+16, where rbx comes from the frame below.
    let saves_rbx: &[u8] = &[0x0e, 16, 0x83, 2];
    let corpus = program(&[Some(saves_rbx), Some(&CFA_RBX_16), Some(&NO_CALLER)]);
    let snapshot = thread(&[slot(3), inside(1), 0, 0, inside(2)]);
    let expected = vec![inside(0), inside(1), inside(2)];
    assert_eq!(walk(&corpus, &snapshot), (expected, 3, End::Outermost));
}

/// The rules of a signal trampoline with 24 words, of which the last two are rbp and
/// pc of what was interrupted, with the stack pointer after them.
const SIGNAL: &[u8] = &[0x0e, 0xc0, 1, 0x86, 2];

/// A stack with a function above a signal trampoline that was interrupted at its
/// first instruction, and the words in the slots at `rbp_at` words below its CFA.
fn interrupted(rbp_at: u8) -> (Vec<u64>, End) {
    let row: &[u8] = &[0x86, rbp_at];
    let corpus = program(&[Some(SIGNAL), Some(row), Some(&CFA_RBP_16), Some(&NO_CALLER)]);
    let mut words = [1; 28];
    (words[22], words[23], words[24]) = (slot(26), pc(1), inside(2));
    words[27] = inside(3);
    let (frames, _, end) = walk(&corpus, &thread(&words));
    (frames, end)
}

#[test]
fn a_slot_in_the_red_zone_of_what_a_signal_interrupted_is_read_and_one_below_is_not() {
    let whole = vec![inside(0), pc(1), inside(2), inside(3)];
    // Within 128 bytes below the stack pointer the slot holds a 1.
    assert_eq!(interrupted(17), (whole[..3].to_vec(), End::Unreadable { addr: 9 }));
    // Further below the register is taken as kept.
    assert_eq!(interrupted(18), (whole, End::Outermost));
}

#[test]
fn frames_beyond_code_without_call_frame_information_are_guesses() {
    let corpus = program(&[Some(&[]), None, Some(&CFA_RBP_16), Some(&NO_CALLER)]);
    let mut snapshot = thread(&[inside(1), 0, slot(4), inside(2), 0, inside(3)]);
    snapshot.gpr[RBP] = slot(2);
    let frames = vec![inside(0), inside(1), inside(2), inside(3)];
    assert_eq!(
        walk(&corpus, &snapshot),
        (frames, 2, End::NotCovered { pc: inside(1) - 1 }),
        "two are certain"
    );
}

#[test]
fn the_reference_says_where_the_captured_bytes_end() {
    let corpus = program(&[Some(&[]), Some(&[]), Some(&NO_CALLER)]);
    let whole = thread(&[inside(1), inside(2)]);
    assert_eq!(walk(&corpus, &whole).2, End::Outermost);
    for len in 8..16 {
        let stack = &whole.stack[..len];
        let (frames, certain, end) = walk(&corpus, &Snapshot { stack, ..whole });
        assert_eq!((frames.len(), certain, end), (2, 2, End::BytesEnd));
    }
}

#[test]
fn the_rows_of_a_procedure_linkage_table_are_evaluated() {
    // As linkers write it: rsp + 8 + ((rip & 15) >= 11) * 8.
    let plt: &[u8] = &[0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let corpus = program(&[Some(plt), Some(&NO_CALLER)]);
    for (low, words) in [(0, [inside(1), 0]), (10, [inside(1), 0]), (11, [7, inside(1)])] {
        let mut snapshot = thread(&words);
        snapshot.rip = pc(0) + low;
        let expected = vec![snapshot.rip, inside(1)];
        assert_eq!(walk(&corpus, &snapshot), (expected, 2, End::Outermost), "{low}");
    }
}

#[test]
fn rsp_goes_through_rbx_only_with_its_value() {
    let corpus = program(&[Some(&CFA_RBX_16), Some(&NO_CALLER)]);
    let mut snapshot = thread(&[0, 0, inside(1)]);
    snapshot.gpr[RBX] = slot(1);
    assert_eq!(walk(&corpus, &snapshot).2, End::Outermost);
    let mut reference = Reference::new(&corpus);
    let mut registers = [None; 16];
    registers[RSP] = Some(SP);
    reference.walk_from(&snapshot, registers);
    assert_eq!(reference.end(), End::UnknownRegister(3));
}

/// A walk that was made up.
struct Planted {
    frames: Vec<u64>,
    is_complete: bool,
}

impl Unwinder for Planted {
    fn walk(&mut self, _: &Snapshot<'_>) -> usize {
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }

    fn is_complete(&self) -> Option<bool> {
        Some(self.is_complete)
    }
}

/// Each stack of the committed corpora, walked by the reference.
fn each_stack(mut seen: impl FnMut(&Reference)) {
    for path in Corpus::paths() {
        let corpus = Corpus::open(&path);
        let mut reference = Reference::new(&corpus);
        for snapshot in &corpus.snapshots {
            reference.walk(snapshot);
            seen(&reference);
        }
    }
}

#[test]
fn a1_a_walk_that_ends_early_is_short_wherever_it_ends() {
    let mut count = 0;
    each_stack(|reference| {
        let frames = reference.frames();
        for at in 1..reference.certain() {
            for (is_complete, verdict) in
                [(false, Verdict::Short { at }), (true, Verdict::FalselyComplete { at })]
            {
                let planted = Planted { frames: frames[..at].to_vec(), is_complete };
                assert_eq!(judge(reference, &planted), verdict);
            }
            count += 1;
        }
    });
    assert!(count > 1000);
}

#[test]
fn a1_a_walk_that_leaves_a_caller_out_is_wrong_whatever_follows() {
    let mut count = 0;
    each_stack(|reference| {
        let frames = reference.frames();
        for at in 1..reference.certain() {
            for len in at + 1..=reference.certain() {
                let mut planted = frames[..len].to_vec();
                planted.remove(at);
                let planted = Planted { frames: planted, is_complete: true };
                assert!(judge(reference, &planted).is_wrong(), "{at} of {len}");
                count += 1;
            }
        }
    });
    assert!(count > 1000);
}

#[test]
fn a1_frames_beyond_the_end_of_the_stack_are_wrong() {
    let mut count = 0;
    each_stack(|reference| {
        let is_complete = reference.end() == End::Outermost;
        let mut frames = reference.frames()[..reference.certain()].to_vec();
        let right = Planted { frames: frames.clone(), is_complete };
        frames.push(0x1234);
        let longer = Planted { frames, is_complete: false };
        if is_complete {
            assert_eq!(judge(reference, &right), Verdict::Same);
            assert_eq!(judge(reference, &longer), Verdict::Differs { at: reference.certain() });
            assert_eq!(more_than_ours(reference, &right, &longer), None);
            count += 1;
        } else if reference.end() != End::Limit {
            assert_eq!(judge(reference, &right), Verdict::Unjudged);
            assert_eq!(judge(reference, &longer), Verdict::Unjudged);
            let at = Some(reference.certain());
            assert_eq!(more_than_ours(reference, &right, &longer), at);
            let bold = Planted { is_complete: true, ..right };
            assert_eq!(judge(reference, &bold), Verdict::BoldlyComplete);
        }
    });
    assert!(count > 100);
}

/// This workspace's walk, but for its last `dropped` frames.
struct EndsEarly(Unwind, usize);

impl Unwinder for EndsEarly {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.0.walk(snapshot)
    }

    fn frames(&self) -> Vec<u64> {
        let mut frames = self.0.frames();
        frames.truncate(frames.len().saturating_sub(self.1).max(1));
        frames
    }

    fn is_complete(&self) -> Option<bool> {
        Some(false)
    }
}

#[test]
fn a1_a_rival_with_more_frames_is_a_finding_unless_it_has_a_reason() {
    let path = Corpus::paths().into_iter().find(|path| path.ends_with("c-nofp.snap"));
    let Some(path) = path else { return };
    let corpus = Corpus::open(&path);
    let report = |dropped| {
        let ours: Box<dyn Unwinder> = Box::new(EndsEarly(Unwind::new(&corpus), dropped));
        let rival: Box<dyn Unwinder> = Box::new(Framehop::new(&corpus));
        Report::of(&corpus, vec![("unwind", ours)], vec![("framehop", rival)])
    };
    assert_eq!(report(0).unknown(&[]), []);
    let wrong = report(1);
    let kinds: Vec<_> = wrong.findings.keys().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::Short, Kind::RivalHasMore]);
    assert_eq!(wrong.counts[0].1.short, wrong.stacks);
    assert_eq!(wrong.counts[1].1.more, wrong.stacks);
    assert_eq!(wrong.unknown(&[]).len(), 2);
    // A reason is one of one kind in one program.
    let finding = wrong.findings.keys().last().unwrap();
    let image = String::leak(finding.image.clone());
    let (kind, reason) = (finding.kind, "planted");
    let known = Known { corpus: "c-nofp", kind, who: "framehop", image, percent: 100, reason };
    assert_eq!(wrong.unknown(&[known]).len(), 1);
    assert_eq!(wrong.unknown(&[Known { corpus: "c-fp", ..known }]).len(), 2);
    assert_eq!(wrong.unknown(&[Known { percent: 99, ..known }]).len(), 2, "all of a hundred");
    let result = std::panic::catch_unwind(|| wrong.assert_known(&[known]));
    assert!(result.is_err(), "the bench fails");
}
