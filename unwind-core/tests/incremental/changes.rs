//! A stack of which some words are others, or cannot be read.

use unwind_core::Walker;

use crate::task::*;

#[test]
fn whatever_word_differs_the_walk_is_that_from_the_beginning() {
    for is_lent in [false, true] {
        for (number, _) in (0..).zip(MIXED) {
            let top = STACK + FRAME * (number + 1);
            for (addr, value) in [
                (top - 8, PLAIN + 0x123),
                (top - 8, 0),
                (top - 8, u64::MAX),
                (top - 16, STACK + 0x88),
                (top - 24, 0x78),
                (top - 32, 0),
            ] {
                let mut stack = Stack { is_lent, ..Stack::of(&MIXED) };
                let mut task = Task::new();
                task.walk(leaf(PLAIN), &mut stack);
                stack.set(addr, value);
                task.walk(leaf(PLAIN), &mut stack);
                task.walk(leaf(PLAIN), &mut Stack { is_lent, ..Stack::of(&MIXED) });
            }
        }
    }
}

#[test]
fn two_words_that_change_alike_are_changed_all_the_same() {
    // Of all pairs of return addresses and of saved frame pointers.
    for function in [PLAIN, SAVES_FP] {
        let functions: [u64; 15] =
            core::array::from_fn(|at| if at == 14 { START } else { function });
        let word = |number: usize, slot: usize| 4 * number + slot;
        let read = if function == PLAIN { [3, 3] } else { [1, 3] };
        let places = (0..14).flat_map(|number| read.map(|slot| word(number, slot)));
        for first in places.clone() {
            for second in places.clone().filter(|second| *second > first) {
                let mut stack = Stack::of(&functions).lent();
                let mut task = Task::new();
                task.walk(leaf(function), &mut stack);
                for place in [first, second] {
                    stack.words[place][0] ^= 0x40;
                }
                let reused = task.walk(leaf(function), &mut stack);
                // Those after the frame that the changed one leads to, the first of 16.
                let expected = if function == PLAIN { 13 - second / 4 } else { 0 };
                assert!(reused >= expected, "{first} {second}: {reused}");
            }
        }
    }
}

#[test]
fn frames_after_a_changed_one_are_taken_over_and_those_before_are_not() {
    let mut stack = Stack::of(&[PLAIN; 12]).lent();
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    stack.set(STACK + 5 * FRAME - 8, PLAIN + 0x99);
    // Not that frame and the next one, which the sources are asked for.
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 6);
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 12);
}

#[test]
fn a_stack_that_grows_and_shrinks_keeps_its_outer_part() {
    for is_lent in [false, true] {
        let mut stack = Stack { is_lent, ..Stack::of(&[SAVES_FP; 9]) };
        let mut task = Task::new();
        task.walk(Regs { sp: STACK + 4 * FRAME, ..leaf(SAVES_FP + 1) }, &mut stack);
        // From the first frame that both have on.
        assert_eq!(task.walk(leaf(SAVES_FP + 2), &mut stack), 4);
        let inner = Regs { sp: STACK + 3 * FRAME, ..leaf(SAVES_FP + 3) };
        assert_eq!(task.walk(inner, &mut stack), 5);
        assert_eq!(task.walk(leaf(SAVES_FP + 3), &mut stack), 5);
    }
}

#[test]
fn many_short_runs_of_old_frames_between_others_are_found_again() {
    // Every other frame is another function's.
    let mut stack = Stack::of(&[PLAIN; 15]).lent();
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    for number in (1..14).step_by(2) {
        stack.set(STACK + FRAME * number - 8, PLAIN + 0x300 + number);
    }
    task.walk(leaf(PLAIN), &mut stack);
    // And another time with frames between the old ones.
    for number in (2..14).step_by(3) {
        stack.set(STACK + FRAME * number - 8, SAVES_FP + 0x300 + number);
    }
    task.walk(leaf(PLAIN), &mut stack);
}

#[test]
fn a_read_that_fails_loses_the_frames_after_it_and_no_more() {
    for functions in [&MIXED[..], &[PLAIN, SIGNAL, PLAIN, PLAIN, START]] {
        for is_lent in [false, true] {
            let mut stack = Stack { is_lent, ..Stack::of(functions) };
            let at = STACK + 2 * FRAME;
            if functions[1] == SIGNAL {
                stack.set(at, PLAIN + 7);
                stack.set(at + 8, at + FRAME);
            }
            let mut whole = Task::new();
            whole.walk(leaf(PLAIN), &mut stack);
            let words = stack.words.len();
            for word in 0..words {
                let mut task = Task::new();
                task.walk(leaf(PLAIN), &mut stack);
                // A word that is not there: all as in a walk from the beginning.
                stack.is_lent = false;
                stack.absent = Some(STACK + 8 * u64::try_from(word).unwrap());
                task.walk(leaf(PLAIN), &mut stack);
                (stack.absent, stack.is_lent) = (None, is_lent);
                task.walk(leaf(PLAIN), &mut stack);

                // A read that fails once may be tried again.
                stack.is_lent = false;
                stack.fails = Some(word);
                stack.reads.clear();
                let Task { functions, cache, last, .. } = &mut task;
                Walker::new(Toy, *functions).cache(cache).trace_incremental(
                    leaf(PLAIN),
                    &mut stack,
                    last,
                );
                (stack.fails, stack.is_lent) = (None, is_lent);
                assert!(whole.last.frames().zip(last.frames()).all(|(a, b)| a == b), "{last:?}");
                assert!(
                    last.end().unwrap().is_retryable() || last.len() == whole.last.len(),
                    "{last:?}"
                );
                task.walk(leaf(PLAIN), &mut stack);
            }
        }
    }
}

#[test]
fn a_change_of_any_word_that_was_read_is_seen_wherever_it_is() {
    // The words are compared in groups: these stacks have from 1 to 20 of them, with
    // words of either kind at the ends of groups.
    for (count, kinds) in (1..12).flat_map(|count| (0..8).map(move |kinds| (count, kinds))) {
        let kind = |number| if kinds >> (number % 3) & 1 == 0 { PLAIN } else { SAVES_FP };
        let mut functions: Vec<_> = (0..count).map(kind).collect();
        functions.push(START);
        for is_lent in [false, true] {
            let mut stack = Stack { is_lent, ..Stack::of(&functions) };
            let mut task = Task::new();
            task.walk(leaf(PLAIN), &mut stack);
            assert_eq!(task.walk(leaf(PLAIN), &mut stack), functions.len());
            let callees = core::iter::once(PLAIN).chain(functions.iter().copied());
            for (number, callee) in (1..).zip(callees).take(functions.len()) {
                let top = STACK + FRAME * number;
                for (addr, was_read) in
                    [(top - 8, true), (top - 16, false), (top - 24, callee == SAVES_FP)]
                {
                    let before = stack.clone();
                    let value = u64::from_le_bytes(
                        stack.words[usize::try_from((addr - STACK) / 8).unwrap()],
                    );
                    stack.set(addr, value ^ 0x100);
                    let reused = task.walk(leaf(PLAIN), &mut stack);
                    assert_eq!(reused != functions.len(), was_read, "{functions:x?} {addr:#x}");
                    if addr == top - 8 {
                        let after = usize::try_from(number).unwrap() + 1;
                        assert!(reused + after >= functions.len(), "{reused} {number}");
                    }
                    stack = before;
                    task.walk(leaf(PLAIN), &mut stack);
                    assert_eq!(task.walk(leaf(PLAIN), &mut stack), functions.len());
                }
            }
        }
    }
}
