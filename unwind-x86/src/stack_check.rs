//! How OCaml 5 asks for a larger stack, of which its call frame information says what is not so.

use core::ops::Range;

use unwind_core::{BaseReg, CfaRule, Row};

/// Code with which a function of OCaml 5 asks for a larger stack before it begins. It is after the function's end, and
/// jumps to its start:
///
/// ```text
/// push $34; call caml_call_realloc_stack; pop %r10; jmp start
/// ```
///
/// The call frame information of OCaml up to 5.3 has rows for it as if the function had its frame, which it has not:
/// where it jumps to, the return address is at the stack pointer. Nothing else is on the stack than what these
/// instructions push, so their rows are that of the start, and one with the argument.
///
/// ```
/// use unwind_core::{CfaRule, RegRule, Row};
/// use unwind_x86::StackCheck;
///
/// let code = [0x6a, 34, 0xe8, 0, 0, 0, 0, 0x41, 0x5a, 0xeb, 0xf0];
/// let check = StackCheck::all(0x1000, &code).next().unwrap();
/// assert_eq!(check.start, 0xffb);
///
/// let at_start = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
/// let rows = check.rows(&at_start).unwrap();
/// assert_eq!(rows.map(|(code, row)| (code, row.cfa())), [
///     (0x1000..0x1002, CfaRule::sp(8)),
///     (0x1002..0x1009, CfaRule::sp(16)),
///     (0x1009..0x100b, CfaRule::sp(8)),
/// ]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCheck {
    /// All of it.
    pub code: Range<u64>,
    /// The call and the pop: while the pc is there the argument is on the stack.
    pub pushed: Range<u64>,
    /// Where it jumps to.
    pub start: u64,
}

/// `call rel32`, and its length; `pop %r10`.
const CALL: u8 = 0xe8;
const CALL_LEN: usize = 5;
const POP: [u8; 2] = [0x41, 0x5a];

/// How many bytes it has at most.
pub(crate) const LONGEST: usize = 17;

impl StackCheck {
    /// All in code that is at an address.
    pub fn all(addr: u64, code: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let pops = code.windows(POP.len()).enumerate();
        let pops = pops.filter_map(|(at, bytes)| (bytes == POP).then_some(at));
        pops.filter_map(move |pop| {
            let call = pop.checked_sub(CALL_LEN)?;
            code.get(call).filter(|&&byte| byte == CALL)?;
            let push = match code.get(..call)? {
                [.., 0x6a, _] => call.checked_sub(2)?,
                [.., 0x68, _, _, _, _] => call.checked_sub(5)?,
                _ => return None,
            };
            let jump = pop.checked_add(POP.len())?;
            let (len, distance) = match code.get(jump..)? {
                [0xeb, to, ..] => (2, i64::from(i8::from_le_bytes([*to]))),
                [0xe9, a, b, c, d, ..] => (5, i64::from(i32::from_le_bytes([*a, *b, *c, *d]))),
                _ => return None,
            };
            let end = jump.checked_add(len)?;
            let place = |at: usize| addr.checked_add(u64::try_from(at).ok()?);
            let start = place(end)?.checked_add_signed(distance)?;
            let (code, pushed) = (place(push)?..place(end)?, place(call)?..place(jump)?);
            // A function's start comes before.
            (start < code.start).then_some(Self { code, pushed, start })
        })
    }

    /// Its rows, of that for where it jumps to; `None` if the return address is not at the stack pointer there.
    #[must_use]
    pub fn rows(&self, at_start: &Row) -> Option<[(Range<u64>, Row); 3]> {
        let is_entry = at_start.cfa() == CfaRule::Register(BaseReg::Sp, 8) && !at_start.is_signal();
        let Self { code, pushed, .. } = self;
        let with_argument = at_start.with_cfa(CfaRule::sp(16));
        is_entry.then_some([
            (code.start..pushed.start, *at_start),
            (pushed.start..pushed.end, with_argument),
            (pushed.end..code.end, *at_start),
        ])
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "tests")]
mod tests {
    use unwind_core::{RegRule, WordSize};

    use super::*;

    /// Of functions that OCaml 5.3 has compiled: with short forms, and with long ones.
    const SHORT: [u8; 11] = [0x6a, 0x22, 0xe8, 0x29, 0xc9, 0x04, 0, 0x41, 0x5a, 0xeb, 0x80];
    const LONG: [u8; LONGEST] =
        [0x68, 0, 1, 0, 0, 0xe8, 0x29, 0xc9, 0x04, 0, 0x41, 0x5a, 0xe9, 0x80, 0xff, 0xff, 0xff];

    fn only(code: &[u8]) -> Option<StackCheck> {
        let mut all = StackCheck::all(0x1000, code);
        let found = all.next();
        assert_eq!(all.next(), None);
        found
    }

    #[test]
    fn u3_a_check_of_the_stack_is_known_by_all_of_its_instructions() {
        let (code, pushed) = (0x1000..0x100b, 0x1002..0x1009);
        assert_eq!(only(&SHORT), Some(StackCheck { code, pushed, start: 0xf8b }));
        let (code, pushed) = (0x1000..0x1011, 0x1005..0x100c);
        assert_eq!(only(&LONG), Some(StackCheck { code, pushed, start: 0xf91 }));
        for place in [0, 2, 7, 8, 9] {
            let mut changed = SHORT;
            changed[place] ^= 0x14;
            assert_eq!(only(&changed), None, "{place}");
        }
        for len in 0..SHORT.len() {
            assert_eq!(only(&SHORT[..len]), None, "{len}");
        }
        let mut forward = SHORT;
        forward[10] = 0x10;
        assert_eq!(only(&forward), None);
    }

    #[test]
    fn u3_the_rows_of_a_check_are_those_of_an_entry_alone() {
        let check = only(&SHORT).unwrap();
        let entry = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
        let rows = check.rows(&entry).unwrap();
        assert_eq!(rows.clone().map(|(_, row)| row.cfa()), [8, 16, 8].map(CfaRule::sp));
        assert_eq!((&rows[0].0.start, &rows[2].0.end), (&check.code.start, &check.code.end));
        for other in [entry.with_cfa(CfaRule::sp(48)), Row::frame_pointer(WordSize::Eight)] {
            assert_eq!(check.rows(&other), None);
        }
    }
}
