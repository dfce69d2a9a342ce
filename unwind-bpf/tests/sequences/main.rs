//! The program's own source and [`DeferredUnwind`](unwind_core::deferred::DeferredUnwind) see the same
//! sequences of events and have to agree: on which samples share a cookie, and on what becomes of each.
//!
//! `UNWIND_SEQUENCES` sets the number of those by chance.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, unreachable_pub, reason = "tests")]

mod cases;
mod check;
mod event;
mod planted;
mod program;
mod random;
mod reference;

use std::env;

use event::{Event, lines};
use program::{Program, Written};

const SEQUENCES: u64 = 4000;
const STEPS: u32 = 60;

/// What the program has written in each of the sequences.
///
/// # Errors
///
/// The first sequence in which it is not what the library says.
fn agree(program: &Program, sequences: &[Vec<Event>]) -> Result<Vec<Written>, String> {
    let all = program.run(sequences.iter().map(Vec::as_slice));
    for (number, events) in sequences.iter().enumerate() {
        let written = all.get(number).filter(|written| !written.counts.is_empty());
        let checked = written.ok_or("it has ended".to_owned());
        checked
            .and_then(|written| check::check(events, written))
            .map_err(|difference| format!("{number}: {difference}, in\n{}", lines(events)))?;
    }
    Ok(all)
}

fn program() -> Option<Program> {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    Some(Program::compile(&Program::compiler()?, &name, &[]))
}

#[test]
fn program_and_library_agree_on_each_change_of_a_state() {
    let Some(program) = program() else { return };
    agree(&program, &cases::cases()).unwrap_or_else(|error| panic!("{error}"));
}

/// With an interrupt at each point of each return and exit.
fn interrupted() -> impl Iterator<Item = Vec<Vec<Event>>> {
    cases::cases().into_iter().flat_map(|case| {
        cases::interruptions().into_iter().flat_map(move |events| {
            let case = case.clone();
            (0..).map_while(move |n| {
                let at = |point| cases::interrupted(&case, n, point, &events);
                (1..=120).map(at).collect()
            })
        })
    })
}

#[test]
fn program_and_library_agree_wherever_a_sample_interrupts_a_delivery_or_an_exit() {
    let Some(program) = program() else { return };
    let mut points = 0;
    for sequences in interrupted() {
        let written = agree(&program, &sequences).unwrap_or_else(|error| panic!("{error}"));
        points += written.iter().take(sequences.len()).filter(|it| !it.is_late).count();
    }
    println!("{points} points");
    assert!(points > 2000, "{points}");
}

#[test]
fn program_and_library_agree_on_what_happens_by_chance() {
    let Some(program) = program() else { return };
    let count = env::var("UNWIND_SEQUENCES").map_or(SEQUENCES, |count| count.parse().unwrap());
    let (mut events, mut sums) = (0, [0; 13]);
    for first in (0..count).step_by(1000) {
        let seeds = first..count.min(first + 1000);
        let sequences: Vec<_> = seeds.map(|seed| random::sequence(seed, STEPS)).collect();
        let written = agree(&program, &sequences).unwrap_or_else(|error| panic!("{error}"));
        for counts in written.iter().map(|written| &written.counts) {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        events += sequences.iter().map(Vec::len).sum::<usize>();
    }
    println!("{count} sequences, {events} events, counts {sums:?}");
    // Each of them happens, but what is left in the end.
    assert!(sums[..12].iter().all(|&sum| sum > 200), "{sums:?}");
}
