//! Records of several rings in the order of their times.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

use unwind_perf::merge::Reorder;

#[test]
fn reorder_releases_a_round_when_the_next_but_one_ends() {
    let mut reorder = Reorder::new(usize::MAX);
    let drain = |reorder: &mut Reorder<u64>| -> Vec<u64> {
        core::iter::from_fn(|| reorder.pop()).collect()
    };
    // Two rings a pass, each in order.
    for time in [1, 4, 7, 2, 3, 9] {
        reorder.push(time, 8, time);
    }
    reorder.round();
    assert!(drain(&mut reorder).is_empty(), "the next pass can have older ones");
    assert_eq!(reorder.oldest(), Some(1));
    for time in [8, 12, 5, 6, 10] {
        reorder.push(time, 8, time);
    }
    reorder.round();
    assert_eq!(drain(&mut reorder), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    reorder.finish();
    assert_eq!(drain(&mut reorder), [10, 12]);
    assert_eq!((reorder.bytes(), reorder.oldest()), (0, None));
    assert_eq!((reorder.counts().early, reorder.counts().disordered), (0, 0));
}

#[test]
fn reorder_keeps_the_order_of_equal_times() {
    let mut reorder = Reorder::new(usize::MAX);
    for name in ["first", "second", "third"] {
        reorder.push(5, 8, name);
    }
    reorder.finish();
    let order: Vec<_> = core::iter::from_fn(|| reorder.pop()).collect();
    assert_eq!(order, ["first", "second", "third"]);
}

#[test]
fn reorder_without_rounds_stays_within_its_memory_and_counts_what_that_costs() {
    let limit = 10_000;
    let mut reorder = Reorder::new(limit);
    let mut last = 0;
    let mut out = 0_u64;
    for step in 0..100_000_u64 {
        // Out of order by up to 20.
        let time = step + 20 - (step * 7) % 21;
        reorder.push(time, 50, time);
        while let Some(time) = reorder.pop() {
            assert!(time >= last, "held long enough to be in order");
            last = time;
            out += 1;
        }
        assert!(reorder.bytes() <= limit);
    }
    assert_eq!(reorder.counts().early, out);
    assert_eq!(reorder.counts().disordered, 0);
    // One that is far too late leaves at once.
    reorder.push(3, 50, 3);
    assert_eq!(reorder.pop(), Some(3));
    assert_eq!(reorder.counts().disordered, 1);
}
