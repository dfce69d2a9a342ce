//! A made-up program whose stacks lead through as many places as one likes, each as often as the others.

use unwind_snapshot::Snapshot;

use crate::corpus::{Corpus, Module, Tables};

/// Of how many modules the program is.
const MODULES: u64 = 10;
/// Where the first is loaded, about as Linux loads libraries, how far one is from the next, and where its code is
/// linked. Places a multiple of 4 GiB apart would share the sets of the row cache.
const LOADED: u64 = 0x7f31_a4c0_0000;
const APART: u64 = 0x234_5000;
const CODE: u64 = 0x1000;
/// The bytes of a function. One has one place, a return address after its prologue.
const FUNCTION: u64 = 64;
const PLACE: u64 = 20;
/// The frames of a stack, but for the outermost one, and the most stacks.
const FRAMES: u64 = 32;
const MOST_STACKS: u64 = 4096;
const STACK: u64 = 0x7000_0000_0000;
const RSP: usize = 7;

/// Stacks through `places` return addresses, ten frames for each, as far as there are not too many.
///
/// # Panics
///
/// If it is no multiple of ten.
#[must_use]
pub fn corpus(places: u64) -> Corpus {
    assert!(places != 0 && places.is_multiple_of(MODULES), "there are ten modules");
    let functions = places / MODULES;
    let modules = (0..MODULES).map(|number| {
        let bias = LOADED + number * APART;
        let code = CODE..CODE + (functions + 1) * FUNCTION;
        let eh_frame = eh_frame(functions, code.end);
        let tables = Tables::new(&format!("[places {}]", number + 1), code.end, &eh_frame);
        Module { text: code.start + bias..code.end + bias, bias, tables: Box::leak(tables.into()) }
    });
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % places
    };
    let stacks = (places * 10).div_ceil(FRAMES).min(MOST_STACKS);
    let snapshots = (0..stacks).map(|_| snapshot(functions, &mut next)).collect();
    Corpus { name: format!("places-{places}"), snapshots, modules: modules.collect() }
}

/// How far the CFA of a function is above the stack pointer after its prologue: at most 112, one byte.
fn frame_size(function: u64) -> u8 {
    u8::try_from(16 + 8 * (function % 13)).unwrap()
}

/// The stack of functions that `next` numbers; the outermost frame is of a further one.
fn snapshot(functions: u64, mut next: impl FnMut() -> u64) -> Snapshot<'static> {
    let pc = |module: u64, function| LOADED + module * APART + CODE + function * FUNCTION + PLACE;
    let mut words = Vec::new();
    let mut rip = 0;
    for frame in 0..FRAMES {
        let place = next();
        let (module, function) = (place / functions, place % functions);
        match frame {
            0 => rip = pc(module, function),
            _ => words.push(pc(module, function)),
        }
        let size = usize::from(frame_size(function) / 8);
        words.resize(words.len() + size - 1, 0);
    }
    words.extend([pc(0, functions), 0, 0]);
    let mut gpr = [0; 16];
    gpr[RSP] = STACK;
    let stack = words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>().leak();
    let (space, process, thread, time) = (0, 1, 1, 0);
    let (is_whole, stack_start) = (true, STACK);
    Snapshot { space, process, thread, time, rip, gpr, is_whole, stack_start, stack }
}

/// The call frame information of a module, linked at `addr`: two rows for each function, and one for a
/// further one, which has no caller.
fn eh_frame(functions: u64, addr: u64) -> Vec<u8> {
    // Version 1, "zR", offsets of 32 bits; the CFA is rsp + 8, and the return address just below it.
    let mut bytes = vec![20, 0, 0, 0, 0, 0, 0, 0, 1];
    bytes.extend(b"zR\0");
    bytes.extend([1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0]);
    for function in 0..=functions {
        let at = bytes.len();
        let field = addr + u64::try_from(at).unwrap() + 8;
        let start = (CODE + function * FUNCTION).wrapping_sub(field).cast_signed();
        bytes.extend(16_u32.to_le_bytes());
        bytes.extend(u32::try_from(at + 4).unwrap().to_le_bytes());
        bytes.extend(i32::try_from(start).unwrap().to_le_bytes());
        bytes.extend(u32::try_from(FUNCTION).unwrap().to_le_bytes());
        // Four bytes on, the CFA is further up; or the return address is undefined.
        match function == functions {
            false => bytes.extend([0, 0x44, 0x0e, frame_size(function)]),
            true => bytes.extend([0, 0x07, 16, 0]),
        }
    }
    bytes.extend([0; 4]);
    bytes
}
