//! Scripts: their paths, and the lines of their text.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

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
    Text(TextEnds),
    Unknown,
}

/// The ends of lines in a text, and how long that is.
#[derive(Clone, Debug)]
struct TextEnds {
    ends: Arc<[u32]>,
    len: u64,
}

/// The lines of texts that were read, by what tells a text from others: who looks at a program again and again
/// counts them once.
#[derive(Debug, Default)]
pub(super) struct TextLines {
    known: HashMap<Text, TextEnds>,
    size: usize,
}

/// A text: its address, how long it is, and the script's and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Text {
    script: u64,
    source: u64,
    len: u32,
    file: Option<Untrusted>,
}

impl TextLines {
    /// How many bytes of them are kept: then they are forgotten.
    const BYTES: usize = 32 << 20;

    /// About how many bytes they take.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    fn of<M: Memory>(&mut self, text: Text, heap: &mut Heap<'_, '_, M>) -> Result<TextEnds, Doubt> {
        if let Some(known) = self.known.get(&text) {
            return Ok(known.clone());
        }
        let (units, _) = heap.units(text.source, TEXT)?;
        let len = u64::try_from(units.len()).unwrap_or(u64::MAX);
        let ends = line_ends(&units);
        let size = ends.len().saturating_mul(size_of::<u32>());
        heap.memory.count(size)?;
        if self.size > Self::BYTES {
            *self = Self::default();
        }
        let file = text.file.as_ref().map_or(0, |file| file.as_bytes().len());
        let size = size.saturating_add(file).saturating_add(size_of::<(Text, TextEnds)>());
        self.size = self.size.saturating_add(size);
        let ends = TextEnds { ends: ends.into(), len };
        self.known.insert(text, ends.clone());
        Ok(ends)
    }
}

/// The scripts of a program, each read once.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    known: HashMap<u64, Rc<Script>>,
    lines: TextLines,
}

impl Scripts {
    pub(super) fn with_lines(lines: TextLines) -> Self {
        Self { known: HashMap::new(), lines }
    }

    pub(super) fn into_lines(self) -> TextLines {
        self.lines
    }

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
        let script = Rc::new(Script::read(addr, heap, &mut self.lines)?);
        self.known.insert(addr, Rc::clone(&script));
        Ok(script)
    }
}

impl Script {
    fn read<M: Memory>(
        addr: u64,
        heap: &mut Heap<'_, '_, M>,
        lines: &mut TextLines,
    ) -> Result<Self, Doubt> {
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
        let len = match source {
            Some(source) => heap.memory.half(source, heap.layout.string.length)?,
            None => 0,
        };
        let ends = match heap.of_kind(addr, layout.line_ends, array)? {
            Some(ends) => {
                Ends::Array { addr: ends, count: heap.small(ends, heap.layout.array_length)? }
            }
            None => match source {
                Some(source) => {
                    let text = Text { script: addr, source, len, file: file.clone() };
                    Ends::Text(lines.of(text, heap)?)
                }
                None => Ends::Unknown,
            },
        };
        Ok(Self {
            file,
            has_text: len != 0,
            first_line: heap.small(addr, layout.line_offset)?,
            ends,
        })
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
            Ends::Text(TextEnds { ends, len }) if offset <= *len => {
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
