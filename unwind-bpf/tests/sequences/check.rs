//! Whether the program has written what the library does.

use std::collections::HashMap;

use unwind_core::deferred::SampleOutcome;

use crate::event::{Code, Event};
use crate::program::{Kind, Stack, Written};
use crate::reference::{Reference, SampleExpected, StackExpected};

const OUTERMOST: u64 = 1;
const DEPTH: u64 = 2;
const EXEC: u64 = 4;
const EXIT: u64 = 5;
const NO_MAPPING: u64 = 8;
const MAX_FRAMES: u64 = 2048;

/// # Errors
///
/// The first difference.
pub fn check(events: &[Event], written: &Written) -> Result<(), String> {
    let mut reference = Reference::new(written);
    for event in events {
        reference.see(event);
    }
    let cookies = check_samples(&reference, written)?;
    check_stacks(&reference, written, &cookies)?;
    check_counts(&reference, written)
}

fn same<T: PartialEq + core::fmt::Debug>(what: &str, program: T, library: T) -> Result<(), String> {
    if program == library {
        return Ok(());
    }
    Err(format!("{what}: the program has {program:?}, the library {library:?}"))
}

/// Samples share a cookie where the library's do. Returns the program's by the library's.
fn check_samples(
    reference: &Reference<'_>,
    written: &Written,
) -> Result<HashMap<u64, u64>, String> {
    same("samples", written.samples.len(), reference.samples.len())?;
    let mut cookies = HashMap::new();
    // Which of the library's, or which sample's own, a cookie of the program is.
    let mut meanings = HashMap::new();
    for (index, (sample, &(tid, is_user, expected))) in
        written.samples.iter().zip(&reference.samples).enumerate()
    {
        let what = format!("sample {index}, {expected:?}");
        same(&what, (sample.tid, sample.is_user), (u64::from(tid), is_user))?;
        let meaning = match expected {
            SampleExpected::WithoutUser => {
                same(&what, sample.cookie, 0)?;
                continue;
            }
            SampleExpected::Refused | SampleExpected::Walked => (true, index),
            SampleExpected::Granted(cookie) => {
                let program = *cookies.entry(cookie.get()).or_insert(sample.cookie);
                same(&what, sample.cookie, program)?;
                (false, usize::try_from(cookie.get()).unwrap())
            }
        };
        if sample.cookie == 0 {
            return Err(format!("{what} has no cookie"));
        }
        same(&what, *meanings.entry(sample.cookie).or_insert(meaning), meaning)?;
    }
    Ok(cookies)
}

/// Each cookie has one stack or one reason.
fn check_stacks(
    reference: &Reference<'_>,
    written: &Written,
    cookies: &HashMap<u64, u64>,
) -> Result<(), String> {
    same("stacks", written.stacks.len(), reference.stacks.len())?;
    let mut by_cookie = HashMap::new();
    for stack in written.stacks.iter().filter(|stack| stack.cookie != 0) {
        if by_cookie.insert(stack.cookie, stack).is_some() {
            return Err(format!("two stacks of {:#x}", stack.cookie));
        }
    }
    for expected in &reference.stacks {
        let cookie = match expected {
            StackExpected::Walked(index, _) => written.samples[*index].cookie,
            StackExpected::Delivered(cookie, _) | StackExpected::Abandoned(cookie, _) => {
                cookies[&cookie.get()]
            }
        };
        let what = format!("stack of {cookie:#x}, {expected:?}");
        let Some(stack) = by_cookie.remove(&cookie) else {
            // Of a copy for which there is no room not even the head is written.
            if matches!(expected, StackExpected::Delivered(_, code) if !code.has_table())
                && written.stacks.iter().any(|stack| stack.is_lost && stack.cookie == 0)
            {
                continue;
            }
            return Err(format!("{what} is lost"));
        };
        match expected {
            StackExpected::Walked(_, code) if reference.is_old() => {
                same(&what, (stack.kind, stack.pc), (Kind::Stack, code.pc))?;
            }
            StackExpected::Walked(_, code) | StackExpected::Delivered(_, code) => {
                check_stack(&what, stack, *code)?;
            }
            StackExpected::Abandoned(_, outcome) => {
                let end = if *outcome == SampleOutcome::Exec { EXEC } else { EXIT };
                same(&what, (stack.kind, stack.end, stack.frames), (Kind::Stack, end, 0))?;
            }
        }
    }
    Ok(())
}

fn check_stack(what: &str, stack: &Stack, code: Code) -> Result<(), String> {
    same(what, stack.pc, code.pc)?;
    if !code.has_table() {
        return same(what, (stack.kind, stack.end), (Kind::Copy, NO_MAPPING));
    }
    let depth = u64::from(code.depth);
    let end = if depth > MAX_FRAMES { DEPTH } else { OUTERMOST };
    let expected = (Kind::Stack, end, depth.min(MAX_FRAMES));
    same(what, (stack.kind, stack.end, stack.frames), expected)
}

fn check_counts(reference: &Reference<'_>, written: &Written) -> Result<(), String> {
    let drops = reference.drops();
    let now = |stack: &&StackExpected| matches!(stack, StackExpected::Walked(..));
    let now = u64::try_from(reference.stacks.iter().filter(now).count()).unwrap();
    let copies = |stack: &&Stack| stack.kind == Kind::Copy && !stack.is_lost;
    let copies = u64::try_from(written.stacks.iter().filter(copies).count()).unwrap();
    let lost = written.stacks.iter().filter(|stack| stack.is_lost).count();
    let expected = [
        u64::try_from(reference.samples.len()).unwrap(),
        written.lost,
        u64::try_from(lost).unwrap(),
        now,
        reference.queued,
        reference.shared,
        drops.kernel_thread + drops.user_worker + drops.exiting,
        if reference.is_old() { 0 } else { drops.schedule_failed },
        reference.deliveries,
        copies,
        drops.exec,
        drops.task_gone,
        // All is idle in the end.
        0,
    ];
    same("counts", &*written.counts, &expected)
}
