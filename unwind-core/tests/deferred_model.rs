//! Random sequences of everything that can happen, against a plain model.
//!
//! `PROPTEST_CASES` sets the number of sequences; the counts are printed with
//! `--nocapture`.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test that goes wrong fails"
)]

#[path = "support/deferred_world.rs"]
mod deferred_world;
#[path = "support/sim.rs"]
mod sim;

use core::sync::atomic::Ordering;

use deferred_world::{CALLS, Dice, REQUESTS, STEPS_DONE, World};
use proptest::prelude::*;
use unwind_core::deferred::*;

/// Steps of a sequence.
const STEPS: usize = 200;
/// Sequences in a plain run.
const CASES: u32 = 10_000;

fn run<C: CookieSource + 'static>(cookies: C, steps: &[u64]) {
    let world = World::new(cookies);
    for &step in steps {
        world.step(Dice(step));
    }
    world.finish();
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().map_or(CASES, |cases| cases.parse().unwrap())
}

#[test]
fn every_sequence_gives_what_the_model_says() {
    let config =
        ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
    let sequences = (0..4_u32, prop::collection::vec(any::<u64>(), STEPS));
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&sequences, |(source, steps)| {
        match source {
            0 => run(SerialCookies::new(), &steps),
            1 => run(PerCpuCookies::<4>::new(), &steps),
            2 => run(CounterCookies::new(), &steps),
            _ => run(ClockCookies::new(), &steps),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [queued, pending, executed, refused] =
        REQUESTS.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "{} steps: {queued} requests queued, {pending} already pending, \
         {executed} already executed, {refused} refused; {} calls",
        STEPS_DONE.load(Ordering::Relaxed),
        CALLS.load(Ordering::Relaxed),
    );
    assert!(queued > 0 && pending > 0 && executed > 0 && refused > 0);
}
