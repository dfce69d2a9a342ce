//! One frame of CPython: its code and where in that it is.

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::frame::{CallKind, InterpretedFrame};
use crate::interpreters::python::code::{Code, CodeObjects};
use crate::interpreters::python::offsets::{Place, Traced};

/// The bits of a reference that are no address.
const TAG: u64 = 3;

/// The frame at an address; `None` if it is the interpreter's own one between a class and its `__init__`.
///
/// # Errors
///
/// [`Doubt`] if there is none.
pub(super) fn read_frame<M: Memory>(
    addr: u64,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
) -> Result<Option<InterpretedFrame>, Doubt> {
    let layout = codes.layout.frame;
    let code = codes.at(memory.word(addr, layout.code)? & !TAG, memory)?;
    if code.is_between() {
        return Ok(None);
    }
    let line = match layout.place {
        Place::Number { at, unit, line, traced } => {
            let own = memory.half(addr, line)?;
            let is_traced = match traced {
                Traced::Word(offset) => memory.word(addr, offset)? != 0,
                Traced::Line => own != 0,
            };
            let number = i64::from(memory.half(addr, at)?.cast_signed());
            match is_traced {
                true => Some(own),
                false => code.line(number.saturating_mul(unit), memory)?,
            }
        }
        Place::Address { at } => {
            let place = memory.word(addr, at)?;
            let start = match layout.copy {
                Some(copy) => start_of_copy(&code, memory.half(addr, copy)?, memory)?,
                None => code.start,
            };
            code.line(place.wrapping_sub(start).cast_signed(), memory)?
        }
    };
    memory.count(code.names_len())?;
    let (function, file) = (code.function.clone(), code.file.clone());
    let kind = CallKind::Interpreted;
    Ok(Some(InterpretedFrame {
        language: "python",
        kind,
        function,
        file,
        line,
        start: None,
        text: None,
    }))
}

/// Where the instructions start of the copy of code that a thread executes. The first copy is the code's own.
fn start_of_copy<M: Memory>(
    code: &Code,
    index: u32,
    memory: &mut BoundedMemory<'_, M>,
) -> Result<u64, Doubt> {
    if index == 0 {
        return Ok(code.start);
    }
    let at = u64::from(index).saturating_add(1).saturating_mul(8);
    memory.word(code.copies, at)
}
