//! Linkage tables: the entries by which a linked file calls functions of others.

use unwind_core::{
    Arch, CfaRule, FrameContext, Memory, Origin, RegRule, RegisterRules, Row, RowKey, RowSource,
    VirtAddr, WordSize,
};

use crate::code::Window;
use crate::context_start::context_start;

/// The row of an interrupted frame at an instruction of a linkage table, which keeps no frame
/// pointer: how many slots were pushed above the return address. `None` if the code is no entry.
///
/// What GNU ld, gold, LLVM's linker and mold write, with and without marks for indirect branches:
///
/// ```text
/// entry:     [endbr]; [mov r11d or ecx, number]; [bnd] jmp [slot]; then padding or
///            push number; jmp first
/// or:        endbr; push number; [bnd] jmp first; padding
/// first:     [endbr; push r11]; push [table + 8]; [bnd] jmp [table + 16]; padding
/// or:        endbr32; push ecx; mov or lea ecx, table + 4; push [ecx]; jmp [ecx + 4]
/// ```
pub(crate) fn linkage_row(
    word: WordSize,
    pc: VirtAddr,
    ahead: &[u8],
    preceding: &[u8],
) -> Option<Row> {
    let pushed = pushed_in_entry(word, pc, ahead, preceding)
        .or_else(|| pushed_in_late_entry(word, pc, ahead, preceding))
        .or_else(|| pushed_in_first(word, ahead, preceding))?;
    let slot: i32 = if word == WordSize::Four { 4 } else { 8 };
    let cfa = slot.wrapping_mul(i32::wrapping_add(pushed, 1));
    let row = Row::new(CfaRule::sp(cfa), RegRule::Offset(slot.wrapping_neg()), RegRule::SameValue);
    Some(row.with_origin(Origin::Instructions))
}

/// Of an entry for one function.
fn pushed_in_entry(word: WordSize, pc: VirtAddr, ahead: &[u8], preceding: &[u8]) -> Option<i32> {
    let after_mark = ahead.strip_prefix(&mark(word));
    let code = after_mark.unwrap_or(ahead);
    let follows_mark = after_mark.is_some() || preceding.ends_with(&mark(word));
    // mov r11d, number; mov ecx, number, which mold's entries have.
    let (code, has_number) = match (word, code, preceding) {
        (WordSize::Eight, [0x41, 0xbb, _, _, _, _, rest @ ..], _) => (rest, true),
        (WordSize::Eight, _, [.., 0x41, 0xbb, _, _, _, _]) => (code, true),
        (WordSize::Four, [0xb9, _, _, _, _, rest @ ..], _) if follows_mark => (rest, true),
        (WordSize::Four, _, [before @ .., 0xb9, _, _, _, _]) => {
            (code, before.ends_with(&mark(word)))
        }
        _ => (code, false),
    };
    if let Some(rest) = after_jump_by_slot(code) {
        let is_aligned = pc.get() % 8 == 0;
        let is_entry = follows_mark
            || has_number
            || matches!(rest, [0x68, _, _, _, _, 0xe9, ..])
            // xchg ax, ax: eight bytes in all.
            || is_aligned && rest.starts_with(&[0x66, 0x90]);
        return is_entry.then_some(0);
    }
    match *ahead {
        [0x68, _, _, _, _, 0xe9, ..] if ends_with_jump_by_slot(preceding) => Some(0),
        [0xe9, ..] => {
            let before = preceding.strip_suffix(preceding.last_chunk::<4>()?)?;
            let before = before.strip_suffix(&[0x68])?;
            ends_with_jump_by_slot(before).then_some(1)
        }
        _ => None,
    }
}

/// Of an entry that is only come to while its function is not known, where another table has the jumps
/// by slots. It has sixteen bytes, and jumps back to where the table begins.
fn pushed_in_late_entry(
    word: WordSize,
    pc: VirtAddr,
    ahead: &[u8],
    preceding: &[u8],
) -> Option<i32> {
    let mark = mark(word);
    let (code, pushed) = match pc.get() % 16 {
        0 => (ahead.strip_prefix(&mark)?.strip_prefix(&[0x68])?.get(4..)?, 0),
        4 if preceding.ends_with(&mark) => (ahead.strip_prefix(&[0x68])?.get(4..)?, 0),
        9 => {
            let before = preceding.strip_suffix(preceding.last_chunk::<4>()?)?;
            if !before.strip_suffix(&[0x68])?.ends_with(&mark) {
                return None;
            }
            (ahead, 1)
        }
        _ => return None,
    };
    // From the entry's start.
    let (distance, end) = match *code {
        [0xe9, a, b, c, d, 0x66, 0x90, ..] => (i32::from_le_bytes([a, b, c, d]), 14_u64),
        [0xf2, 0xe9, a, b, c, d, 0x90, ..] => (i32::from_le_bytes([a, b, c, d]), 15),
        _ => return None,
    };
    let entry = pc.get() & !15;
    let first = entry.wrapping_add(end).wrapping_add_signed(distance.into());
    (distance < 0 && first % 16 == 0).then_some(pushed)
}

/// Of the code that all entries come to whose function is not known yet: the number of the entry
/// was pushed, or is in r11.
fn pushed_in_first(word: WordSize, ahead: &[u8], preceding: &[u8]) -> Option<i32> {
    let has_jump = |code: &[u8]| after_jump_by_slot(code).is_some();
    if let Some(rest) = after_push_by_slot(ahead) {
        return has_jump(rest).then_some(1);
    }
    if has_jump(ahead) && ends_with_push_by_slot(preceding) {
        return Some(2);
    }
    if word == WordSize::Eight {
        let code = ahead.strip_prefix(&mark(word)).unwrap_or(ahead);
        let rest = after_push_by_slot(code.strip_prefix(&[0x41, 0x53])?)?;
        return has_jump(rest).then_some(0);
    }
    if word == WordSize::Four { pushed_by_ecx(ahead, preceding) } else { None }
}

/// The same of mold's 32-bit tables, which have the number of the entry in ecx.
fn pushed_by_ecx(ahead: &[u8], preceding: &[u8]) -> Option<i32> {
    let after_mark = ahead.strip_prefix(&mark(WordSize::Four)).unwrap_or(ahead);
    if let Some(rest) = after_mark.strip_prefix(&[0x51]) {
        return is_jump_by_ecx(after_table_in_ecx(rest)?).then_some(0);
    }
    if let Some(rest) = after_table_in_ecx(ahead) {
        return (preceding.ends_with(&[0x51]) && is_jump_by_ecx(rest)).then_some(1);
    }
    let before_push = preceding.strip_suffix(&[0xff, 0x31]);
    match (ahead, before_push) {
        ([0xff, 0x61, 4, ..], Some(before)) => ends_with_table_in_ecx(before).then_some(2),
        _ => (is_jump_by_ecx(ahead) && ends_with_table_in_ecx(preceding)).then_some(1),
    }
}

/// `push [ecx]; jmp [ecx + 4]`.
fn is_jump_by_ecx(code: &[u8]) -> bool {
    code.starts_with(&[0xff, 0x31, 0xff, 0x61, 4])
}

/// What follows `lea ecx, [ebx + distance]` or `mov ecx, table`.
fn after_table_in_ecx(code: &[u8]) -> Option<&[u8]> {
    match code {
        [0x8d, 0x8b, _, _, _, _, rest @ ..] | [0xb9, _, _, _, _, rest @ ..] => Some(rest),
        _ => None,
    }
}

/// The same after `push ecx`.
fn ends_with_table_in_ecx(code: &[u8]) -> bool {
    matches!(code, [.., 0x51, 0x8d, 0x8b, _, _, _, _] | [.., 0x51, 0xb9, _, _, _, _])
}

/// `endbr64` or `endbr32`.
const fn mark(word: WordSize) -> [u8; 4] {
    match word {
        WordSize::Four => [0xf3, 0x0f, 0x1e, 0xfb],
        WordSize::Eight => [0xf3, 0x0f, 0x1e, 0xfa],
    }
}

/// What follows `jmp [slot]` or `bnd jmp [slot]`. The slot's address is relative to the pc or
/// absolute (0x25), or relative to ebx (0xa3).
fn after_jump_by_slot(code: &[u8]) -> Option<&[u8]> {
    let code = code.strip_prefix(&[0xf2]).unwrap_or(code);
    match code {
        [0xff, 0x25 | 0xa3, _, _, _, _, rest @ ..] => Some(rest),
        _ => None,
    }
}

fn ends_with_jump_by_slot(code: &[u8]) -> bool {
    matches!(*code, [.., 0xff, 0x25 | 0xa3, _, _, _, _])
}

/// What follows `push [slot]`, likewise.
fn after_push_by_slot(code: &[u8]) -> Option<&[u8]> {
    match code {
        [0xff, 0x35 | 0xb3, _, _, _, _, rest @ ..] => Some(rest),
        _ => None,
    }
}

fn ends_with_push_by_slot(code: &[u8]) -> bool {
    matches!(*code, [.., 0xff, 0x35 | 0xb3, _, _, _, _])
}

/// The rows of a source, but in linkage tables, where linkers have written wrong ones: an
/// interrupted frame in an entry has the row that its instructions prove. So has a frame in the code
/// that a context of `makecontext` starts in, where a table finds the function before it.
///
/// GNU as and ld of 2.45 to 2.47 write SFrame tables in which the rows of `.plt.got` have a CFA that is a
/// slot too high. The code is looked at where a row of an interrupted frame is not that of a
/// function's first instruction.
#[derive(Clone, Copy, Debug)]
pub struct LinkageEntries<S> {
    source: S,
}

impl<S> LinkageEntries<S> {
    /// The rows of `source`, but for such code.
    #[must_use]
    pub const fn new(source: S) -> Self {
        Self { source }
    }
}

impl<A: Arch, S: RowSource<A>> RowSource<A> for LinkageEntries<S> {
    type Error = S::Error;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        // Changed and returned where it is, so that it is not copied on the stack.
        let mut found = self.source.row(frame, mem);
        if let Ok(Some(row)) = &mut found {
            if frame.is_interrupted() != is_at_entry(row, A::WORD) {
                let real = match frame.is_interrupted() {
                    true => proved(A::WORD, frame.lookup_addr(), mem),
                    // Code calls with more on its stack than its return address: the row is of code
                    // before that to which this return address leads.
                    false => context_start(A::WORD, frame, mem),
                };
                *row = real.unwrap_or(*row);
            }
        }
        found
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        self.source.register_rules(frame, mem)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.source.generation()
    }

    #[inline]
    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        self.source.row_key(addr)
    }
}

/// Whether a row is that of a function that has pushed nothing: an entry's, too.
fn is_at_entry(row: &Row, word: WordSize) -> bool {
    let slot: i32 = if word == WordSize::Four { 4 } else { 8 };
    row.cfa() == CfaRule::sp(slot) && row.ra() == RegRule::Offset(slot.wrapping_neg())
}

#[cold]
#[inline(never)]
fn proved<M: Memory>(word: WordSize, pc: VirtAddr, mem: &mut M) -> Option<Row> {
    let ahead = Window::<32>::after(pc, mem);
    // An entry and what follows it begins with a jump, a push or a mark.
    if !matches!(*ahead.bytes(), [0xff | 0xf2 | 0xf3 | 0x41 | 0x51 | 0x68 | 0x8d | 0xb9 | 0xe9, ..])
    {
        return None;
    }
    let preceding = Window::<16>::before(pc, mem);
    linkage_row(word, pc, ahead.bytes(), preceding.bytes())
}
