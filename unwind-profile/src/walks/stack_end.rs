//! Why the walk of a sample's stack ended.

use std::fmt;

use unwind_core::{End, StepError, TableError, WordSize};
use unwind_perf::record::{UserAbi, UserState};
use unwind_target::counted::counted;
use unwind_target::rows::stack_switches::is_lost;

use crate::mapped::address_spaces::Space;
use crate::recording::end_name::name_of_end;

/// The end of a stack that is deeper than its copy.
pub(crate) const STACK_COPY_TOO_SHORT: &str = "stack-copy-too-short";
/// The end of a stack of which a part was not in memory when it was copied, or is below the stack
/// pointer, where copies begin.
const STACK_NOT_COPIED: &str = "stack-not-copied";

/// The end of a stack whose caller is on another one, which is not copied.
const OTHER_STACK: &str = "other-stack";

/// The end of a stack in code whose file is gone, or is another one by now.
const WITHOUT_FILE: &str = "file-gone";

/// Whether the file with the code at an address cannot be read.
fn is_without_file(addr: u64, space: &Space) -> bool {
    let range = space.find(addr);
    range.is_some_and(|range| range.file.path().is_some() && range.file.elf().is_err())
}

/// Why there are no more frames than up to the one that executes `last`: in words, unless that is
/// the outermost one, and in a word.
pub(super) fn why_ended<E: TableError + fmt::Display>(
    end: Option<End<E>>,
    last: Option<u64>,
    sp: u64,
    state: &UserState<'_>,
    space: &Space,
) -> (Option<String>, &'static str) {
    match (end, last) {
        (Some(end), _) if end.is_outermost() => (None, ""),
        (Some(end), Some(last)) => {
            let word = if is_lost(&end) {
                OTHER_STACK
            } else if is_without_file(last, space) {
                WITHOUT_FILE
            } else if !is_beyond_copy(&end, sp, state, space) {
                name_of_end(end.code())
            } else {
                beyond_copy(&end, sp, state.room, state.stack.len() == state.room)
            };
            (Some(why_cut(&end, last, sp, state, space)), word)
        }
        _ => (Some("there is no stack".into()), "no-start"),
    }
}

/// Whether a walk ended where the copy of the stack does.
fn is_beyond_copy<E>(end: &End<E>, sp: u64, state: &UserState<'_>, space: &Space) -> bool {
    let copied = u64::try_from(state.stack.len()).unwrap_or(u64::MAX);
    match end {
        End::Step(StepError::Unreadable { addr, .. }) => {
            // perf tells of the stack's own mapping, too, which is none of a file.
            let range = space.find(addr.get());
            let is_of_file =
                range.is_some_and(|range| range.file.name.as_bytes().starts_with(b"/"));
            addr.get().wrapping_sub(sp) >= copied && !is_of_file
        }
        _ => false,
    }
}

/// How far below the stack pointer code has words of its own.
const RED_ZONE: u64 = 128;

/// How far above the stack pointer a word is of the same stack, in bytes: few have as many.
const DEEPEST: u64 = 1 << 30;

/// What is said of a walk that ended beyond a copy of the stack, which is as long as its `room` if it `is_full`. What
/// no copy reaches, whatever of it is in memory, is on another stack, to which call frame information has led.
fn beyond_copy<E>(end: &End<E>, sp: u64, room: usize, is_full: bool) -> &'static str {
    let End::Step(StepError::Unreadable { addr, .. }) = end else { return STACK_NOT_COPIED };
    let room = u64::try_from(room).unwrap_or(u64::MAX);
    let (above, below) = (addr.get().wrapping_sub(sp), sp.wrapping_sub(addr.get()));
    if is_full && above < DEEPEST {
        STACK_COPY_TOO_SHORT
    } else if above >= room && below > RED_ZONE {
        OTHER_STACK
    } else {
        STACK_NOT_COPIED
    }
}

/// Why a walk ended at the frame that executes `call`.
fn why_cut<E: TableError + fmt::Display>(
    end: &End<E>,
    call: u64,
    sp: u64,
    state: &UserState<'_>,
    space: &Space,
) -> String {
    if let End::Table(error) = end
        && is_lost(end)
    {
        return error.to_string();
    }
    if is_beyond_copy(end, sp, state, space) {
        let copied = u64::try_from(state.stack.len()).unwrap_or(u64::MAX);
        let copied = counted(copied, "byte", "bytes");
        return format!("{end}; the sample has {copied} of the stack from {sp:#x} on");
    }
    let Some(range) = space.find(call) else {
        return format!("{end}; no file is mapped at {call:#x}");
    };
    let name = &range.file.name;
    if let Err(error) = range.file.elf() {
        return format!("{end}; {name}: {error}");
    }
    let word = match state.abi {
        UserAbi::Bits32 => WordSize::Four,
        UserAbi::Bits64 => WordSize::Eight,
    };
    let row = range.link_time(call).map(|addr| range.file.call_frame_row(addr, word));
    match (row, range.file.unread_call_frames()) {
        (Some(Err(error)), _) => format!("{end}; {name}: {error}"),
        (Some(Ok(None)), Some(error)) => format!("{end}; {name}: {error}"),
        (Some(Ok(None)), None)
            if range.file.sframe().is_none() && !range.file.has_call_frames(word) =>
        {
            format!("{end}; {name} has neither .sframe nor .eh_frame")
        }
        _ => end.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use unwind_core::{ReadError, VirtAddr};

    use super::*;

    #[test]
    fn u3_a_caller_is_on_another_stack_where_no_copy_of_this_one_reaches() {
        const SP: u64 = 0x7fff_0000;
        for (addr, word, word_if_full) in [
            (SP - 8, STACK_NOT_COPIED, STACK_NOT_COPIED),
            (SP - 128, STACK_NOT_COPIED, STACK_NOT_COPIED),
            (SP - 136, OTHER_STACK, OTHER_STACK),
            (SP + 0x1fff, STACK_NOT_COPIED, STACK_COPY_TOO_SHORT),
            (SP + 0x2000, OTHER_STACK, STACK_COPY_TOO_SHORT),
            (0x7f00_1234_5678, OTHER_STACK, OTHER_STACK),
        ] {
            let error = ReadError::Invalid;
            let end =
                End::<Infallible>::Step(StepError::Unreadable { addr: VirtAddr::new(addr), error });
            assert_eq!(beyond_copy(&end, SP, 0x2000, false), word, "{addr:#x}");
            assert_eq!(beyond_copy(&end, SP, 0x2000, true), word_if_full, "{addr:#x}");
        }
    }
}
