//! Any sequence of requests, deliveries, execs, exits, registrations and NMIs
//! has the outcomes that a plain model gives it.

use unwind_core::deferred::{
    ClockCookies, CookieSource, CounterCookies, PerCpuCookies, SerialCookies,
};

use crate::deferred_world::{Dice, World};

pub(crate) fn run(data: &[u8]) {
    let Some((source, steps)) = data.split_first() else { return };
    match source % 4 {
        0 => all(SerialCookies::new(), steps),
        1 => all(PerCpuCookies::<4>::new(), steps),
        2 => all(CounterCookies::new(), steps),
        _ => all(ClockCookies::new(), steps),
    }
}

fn all<C: CookieSource + 'static>(cookies: C, steps: &[u8]) {
    let world = World::new(cookies);
    for step in steps.chunks(8).take(256) {
        let mut dice = [0; 8];
        dice[..step.len()].copy_from_slice(step);
        world.step(Dice(u64::from_le_bytes(dice)));
    }
    world.finish();
}
