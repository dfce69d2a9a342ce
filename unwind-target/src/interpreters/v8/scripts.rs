//! Scripts: their paths, and the lines of their text.

use std::collections::HashMap;
use std::rc::Rc;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::v8::heap::Heap;
use crate::untrusted::Untrusted;

/// How many characters of a path are read.
const PATH: u64 = 4096;
/// How many characters of a text are read to count its lines.
const TEXT: u64 = 8 << 20;

/// A script.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) file: Option<Untrusted>,
    /// One of WebAssembly has none.
    pub(super) has_text: bool,
    /// The number of its first line, from 0.
    first_line: u64,
    ends: Ends,
}

/// Where its lines end.
#[derive(Debug)]
enum Ends {
    /// In an array of V8's.
    Array {
        addr: u64,
        count: u64,
    },
    /// In its text, as far as that was read.
    Text {
        ends: Vec<u32>,
        len: u64,
    },
    Unknown,
}

/// The scripts of a program, each read once.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    known: HashMap<u64, Rc<Script>>,
}

impl Scripts {
    /// The script at an address.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn at<M: Memory>(
        &mut self,
        addr: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Rc<Script>, Doubt> {
        if let Some(known) = self.known.get(&addr) {
            return Ok(Rc::clone(known));
        }
        let script = Rc::new(Script::read(addr, heap)?);
        self.known.insert(addr, Rc::clone(&script));
        Ok(script)
    }
}

impl Script {
    fn read<M: Memory>(addr: u64, heap: &mut Heap<'_, '_, M>) -> Result<Self, Doubt> {
        let (layout, array) = (heap.layout.script, heap.layout.types.fixed_array);
        let name = heap.at(addr, layout.name)?;
        let file = match name {
            Some(name) if heap.is_text(name)? => Some(heap.text(name, PATH)?),
            _ => None,
        };
        let source = match heap.at(addr, layout.source)? {
            Some(source) if heap.is_text(source)? => Some(source),
            _ => None,
        };
        let has_text = match source {
            Some(source) => heap.memory.half(source, heap.layout.string.length)? != 0,
            None => false,
        };
        let ends = match heap.of_kind(addr, layout.line_ends, array)? {
            Some(ends) => {
                Ends::Array { addr: ends, count: heap.small(ends, heap.layout.array_length)? }
            }
            None => match source {
                Some(source) => {
                    let (units, _) = heap.units(source, TEXT)?;
                    let len = u64::try_from(units.len()).unwrap_or(u64::MAX);
                    let ends = line_ends(&units);
                    heap.memory.count(ends.len().saturating_mul(size_of::<u32>()))?;
                    Ends::Text { ends, len }
                }
                None => Ends::Unknown,
            },
        };
        Ok(Self { file, has_text, first_line: heap.small(addr, layout.line_offset)?, ends })
    }

    /// The line of a character, from 1.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if it cannot be read.
    pub(super) fn line<M: Memory>(
        &self,
        offset: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Option<u32>, Doubt> {
        let before = match &self.ends {
            Ends::Array { addr, count } => {
                let (mut low, mut high) = (0_u64, *count);
                while low < high {
                    let middle = low.midpoint(high);
                    let at = heap.layout.array_data.saturating_add(middle.saturating_mul(8));
                    match heap.small(*addr, at)? < offset {
                        true => low = middle.saturating_add(1),
                        false => high = middle,
                    }
                }
                low
            }
            Ends::Text { ends, len } if offset <= *len => {
                let before = ends.partition_point(|&end| u64::from(end) < offset);
                u64::try_from(before).unwrap_or(u64::MAX)
            }
            _ => return Ok(None),
        };
        let line = self.first_line.saturating_add(before).saturating_add(1);
        Ok(u32::try_from(line).ok())
    }
}

/// Where the lines of a text end, by what ends one in JavaScript.
fn line_ends(units: &[u16]) -> Vec<u32> {
    let is_end = |(at, unit): (usize, &u16)| match *unit {
        0x0a | 0x2028 | 0x2029 => true,
        0x0d => units.get(at.saturating_add(1)) != Some(&0x0a),
        _ => false,
    };
    let ends = units.iter().enumerate().filter(|&place| is_end(place));
    ends.filter_map(|(at, _)| u32::try_from(at).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_each_of_the_ends_that_javascript_has() {
        let text: Vec<_> = "a\nb\r\nc\rd\u{2028}e".encode_utf16().collect();
        assert_eq!(line_ends(&text), [1, 4, 6, 8]);
    }
}
