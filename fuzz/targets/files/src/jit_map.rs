//! The text of a `perf-PID.map`: the functions that a plain list of its lines has, in which the
//! last line about an address holds; memory and time in proportion.

use std::time::{Duration, Instant};

use test_support::CountingAllocator;
use unwind_target::jit::jit_map::functions_of;

/// Bytes of memory for each byte of input, and for any input.
const PER_BYTE: u64 = 128;
const FIXED: u64 = 64 << 10;

/// What any input may take, also on a busy machine.
const TIME: Duration = Duration::from_secs(10);

/// The longest name that is kept.
const NAME: usize = 4096;

pub(crate) fn run(data: &[u8]) {
    let (len, start) = (data.len() as u64, Instant::now());
    let (functions, peak) = CountingAllocator::peak_of(|| functions_of(data));
    assert!(start.elapsed() < TIME, "{:?} for {len} bytes", start.elapsed());
    // Names of parts of one function are copied for the answer.
    let copied: usize = functions.iter().map(|(_, _, name)| 2 * name.len()).sum();
    let allowed = PER_BYTE * len + copied as u64 + FIXED;
    assert!(peak <= allowed, "{peak} bytes of memory for {len}");
    for pair in functions.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?} are over each other");
    }
    let lines: Vec<_> = data.split(|&byte| byte == b'\n').filter_map(function).collect();
    let edges = lines.iter().flat_map(|&(from, to, _)| [from, to - 1, to, from.wrapping_sub(1)]);
    for addr in edges {
        let is_in = |from: u64, to: u64| (from..to).contains(&addr);
        let told = lines.iter().rev().find(|&&(from, to, _)| is_in(from, to));
        let found = functions.iter().find(|&&(from, to, _)| is_in(from, to));
        let (told, found) = (told.map(|line| line.2), found.map(|found| &found.2[..]));
        assert_eq!(found, told.map(|name| name.get(..NAME).unwrap_or(name)), "{addr:#x}");
    }
}

/// Start, end and name that a line tells.
fn function(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.trim_ascii_end();
    let (start, rest) = number(line)?;
    let (len, name) = number(rest)?;
    let end = start.checked_add(len)?;
    (len > 0 && !name.is_empty()).then_some((start, end, name))
}

/// Hexadecimal digits up to a space, and what comes after it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let at = text.iter().position(|&byte| byte == b' ')?;
    let digits = text[..at].strip_prefix(b"0x").unwrap_or(&text[..at]);
    let value = digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        value.checked_mul(16)?.checked_add(digit.into())
    });
    Some((value.filter(|_| !digits.is_empty())?, &text[at + 1..]))
}
