//! V8's heap: tagged words, types of objects, texts.

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::v8::constants::Layout;
use crate::untrusted::Untrusted;

/// How many parts a text may have.
const PARTS: usize = 64;

/// The heap of a program.
#[derive(Debug)]
pub(super) struct Heap<'h, 'm, M> {
    pub(super) layout: &'h Layout,
    pub(super) memory: &'h mut BoundedMemory<'m, M>,
}

/// The address of an object, if a word is that of one.
pub(super) const fn object(word: u64) -> Option<u64> {
    if word & 1 == 1 { Some(word & !3) } else { None }
}

/// The small integer that a word is, if it is one.
pub(super) const fn small(word: u64) -> Option<u64> {
    // The upper half, which is never negative where this is asked.
    if word & 1 == 0 { Some(word >> 32) } else { None }
}

impl<M: Memory> Heap<'_, '_, M> {
    /// The type of the object at an address.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if there is none.
    pub(super) fn kind(&mut self, addr: u64) -> Result<u64, Doubt> {
        let map = self.at(addr, 0)?.ok_or(Doubt::Strange("an object without a map"))?;
        let kind = self.memory.array(map, self.layout.instance_type)?;
        Ok(u64::from(u16::from_le_bytes(kind)))
    }

    /// The object that a field refers to; `None` if it is a small integer.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn at(&mut self, addr: u64, offset: u64) -> Result<Option<u64>, Doubt> {
        Ok(object(self.memory.word(addr, offset)?))
    }

    /// The object that a field refers to, if it has this type.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn of_kind(
        &mut self,
        addr: u64,
        offset: u64,
        kind: u64,
    ) -> Result<Option<u64>, Doubt> {
        let word = self.memory.word(addr, offset)?;
        self.as_kind(word, kind)
    }

    /// The object that a word refers to, if it has this type.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn as_kind(&mut self, word: u64, kind: u64) -> Result<Option<u64>, Doubt> {
        let Some(found) = object(word) else { return Ok(None) };
        Ok((self.kind(found)? == kind).then_some(found))
    }

    /// The value of the small integer in a field.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if there is none.
    pub(super) fn small(&mut self, addr: u64, offset: u64) -> Result<u64, Doubt> {
        small(self.memory.word(addr, offset)?).ok_or(Doubt::Strange("a number that is none"))
    }

    /// An element of an array, if it has it.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn element(&mut self, array: u64, index: u64) -> Result<Option<u64>, Doubt> {
        if index >= self.small(array, self.layout.array_length)? {
            return Ok(None);
        }
        let offset = self.layout.array_data.saturating_add(index.saturating_mul(8));
        Ok(Some(self.memory.word(array, offset)?))
    }

    /// The bytes of an array of bytes, up to `limit`.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if they cannot be read, or are more.
    pub(super) fn bytes(&mut self, array: u64, limit: u64) -> Result<Vec<u8>, Doubt> {
        let len = self.small(array, self.layout.array_length)?;
        if len > limit {
            return Err(Doubt::TooMuch);
        }
        let start = array.wrapping_add(self.layout.array_data);
        self.memory.bytes(start, usize::try_from(len).unwrap_or(0))
    }

    /// Whether an object is a text.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if there is none.
    pub(super) fn is_text(&mut self, addr: u64) -> Result<bool, Doubt> {
        Ok(self.kind(addr)? < self.layout.types.first_other_than_string)
    }

    /// The UTF-16 units of a text, up to `limit`, and whether that is all.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn units(&mut self, addr: u64, limit: u64) -> Result<(Vec<u16>, bool), Doubt> {
        let layout = self.layout.string;
        let mut units = Vec::new();
        // What is still to be read, with where that starts and ends: the last is first.
        let mut parts = vec![(addr, 0_u64, u64::MAX)];
        for _ in 0..PARTS {
            let Some((part, from, to)) = parts.pop() else { return Ok((units, true)) };
            let kind = self.kind(part)?;
            if kind >= self.layout.types.first_other_than_string {
                return Err(Doubt::Strange("a name that is no text"));
            }
            let len = u64::from(self.memory.half(part, layout.length)?).min(to);
            let form = kind & layout.form_mask;
            if form == layout.thin {
                parts.extend(self.at(part, layout.actual)?.map(|text| (text, from, to)));
            } else if form == layout.cons {
                let (first, second) = (self.at(part, layout.first)?, self.at(part, layout.second)?);
                let (Some(first), Some(second)) = (first, second) else { break };
                let before = u64::from(self.memory.half(first, layout.length)?);
                if len > before {
                    let rest = (from.saturating_sub(before), len.saturating_sub(before));
                    parts.push((second, rest.0, rest.1));
                }
                parts.push((first, from, len.min(before)));
            } else if form == layout.sliced {
                let offset = self.small(part, layout.offset)?;
                let place = (from.saturating_add(offset), len.saturating_add(offset));
                parts.extend(self.at(part, layout.parent)?.map(|text| (text, place.0, place.1)));
            } else {
                let start = if form == layout.sequential {
                    part.wrapping_add(layout.chars)
                } else if form == layout.outside {
                    self.memory.word(part, layout.external)?
                } else {
                    break;
                };
                let room = limit.saturating_sub(u64::try_from(units.len()).unwrap_or(u64::MAX));
                let count = len.saturating_sub(from);
                let shown = usize::try_from(count.min(room)).unwrap_or(0);
                if kind & layout.narrow_mask != 0 {
                    let bytes = self.memory.bytes(start.wrapping_add(from), shown)?;
                    units.extend(bytes.into_iter().map(u16::from));
                } else {
                    let start = start.wrapping_add(from.saturating_mul(2));
                    let bytes = self.memory.bytes(start, shown.saturating_mul(2))?;
                    let (pairs, _) = bytes.as_chunks::<2>();
                    units.extend(pairs.iter().map(|pair| u16::from_le_bytes(*pair)));
                }
                if count > room {
                    return Ok((units, false));
                }
            }
        }
        let is_all = parts.is_empty();
        Ok((units, is_all))
    }

    /// A text, up to `limit` characters.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn text(&mut self, addr: u64, limit: u64) -> Result<Untrusted, Doubt> {
        let (units, is_all) = self.units(addr, limit)?;
        let mut text = String::from_utf16_lossy(&units);
        if !is_all {
            text.push('…');
        }
        Ok(text.into())
    }
}
