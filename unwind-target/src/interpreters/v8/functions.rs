//! Functions: what each is called, and where it is from.

use std::collections::HashMap;
use std::rc::Rc;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::frame::{CallKind, InterpretedFrame};
use crate::interpreters::v8::heap::{Heap, object, small};
use crate::interpreters::v8::scripts::{Script, Scripts, TextLines};
use crate::untrusted::Untrusted;

/// How many characters of a name are read.
const NAME: u64 = 1024;
/// Up to as many names of variables are listed, else they are in a table.
const LISTED: u64 = 75;

/// A function, which closures share.
#[derive(Debug)]
pub(super) struct Function {
    name: Option<Untrusted>,
    script: Option<Rc<Script>>,
    /// Where it starts in its script.
    start: Option<u64>,
}

/// The functions of a program, each read once.
#[derive(Debug, Default)]
pub(super) struct Functions {
    scripts: Scripts,
    known: HashMap<u64, Rc<Function>>,
}

impl Functions {
    /// None yet, of a program of which these lines of texts were read before.
    pub(super) fn with_lines(lines: TextLines) -> Self {
        Self { scripts: Scripts::with_lines(lines), known: HashMap::new() }
    }

    /// The lines of texts that were read.
    pub(super) fn into_lines(self) -> TextLines {
        self.scripts.into_lines()
    }

    /// The function whose shared data is at an address.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if there is none.
    pub(super) fn at<M: Memory>(
        &mut self,
        addr: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Rc<Function>, Doubt> {
        if let Some(known) = self.known.get(&addr) {
            return Ok(Rc::clone(known));
        }
        let function = Rc::new(self.read(addr, heap)?);
        self.known.insert(addr, Rc::clone(&function));
        Ok(function)
    }

    fn read<M: Memory>(
        &mut self,
        addr: u64,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<Function, Doubt> {
        let (layout, types) = (heap.layout.function, heap.layout.types);
        if heap.kind(addr)? != types.shared {
            return Err(Doubt::Strange("a frame without a function"));
        }
        let script = match heap.of_kind(addr, layout.script, types.script)? {
            Some(script) => Some(self.scripts.at(script, heap)?),
            None => None,
        };
        let (name, start) = match heap.at(addr, layout.name)? {
            Some(scope) if heap.kind(scope)? == types.scope => read_scope(scope, heap)?,
            Some(name) if heap.is_text(name)? => (Some(heap.text(name, NAME)?), None),
            _ => (None, None),
        };
        let name = name.filter(|name| !name.as_bytes().is_empty());
        Ok(Function { name, script, start })
    }
}

/// The name and the start of a function, by what is known of its variables.
fn read_scope<M: Memory>(
    addr: u64,
    heap: &mut Heap<'_, '_, M>,
) -> Result<(Option<Untrusted>, Option<u64>), Doubt> {
    let layout = heap.layout.scope;
    let flags = heap.memory.word(addr, 8)?;
    let flags = if layout.tagged_flags { flags >> 32 } else { flags };
    let variables = heap.small(addr, 24)?;
    let mut slot = 32_u64;
    let mut skip = |slots: u64| {
        let place = slot;
        slot = slot.saturating_add(slots.saturating_mul(8));
        place
    };
    let first = if layout.places_first { Some(skip(2)) } else { None };
    if flags & 0xf == layout.module {
        skip(1);
    }
    skip(if variables < LISTED {
        variables.saturating_mul(2)
    } else {
        variables.saturating_add(1)
    });
    if flags & 1 << 10 != 0 {
        skip(1);
    }
    let own = if flags >> 12 & 3 != 0 { Some(skip(2)) } else { None };
    let inferred = if flags & 1 << 14 != 0 { Some(skip(1)) } else { None };
    let start = first.unwrap_or_else(|| skip(2));
    let mut name = None;
    for place in [own, inferred].into_iter().flatten() {
        if let Some(text) = object(heap.memory.word(addr, place)?)
            && heap.is_text(text)?
        {
            name = Some(heap.text(text, NAME)?).filter(|name| !name.as_bytes().is_empty());
        }
        if name.is_some() {
            break;
        }
    }
    Ok((name, small(heap.memory.word(addr, start)?)))
}

impl Function {
    /// Whether it is of a program, or of node's own in JavaScript, and no builtin one.
    pub(super) const fn has_script(&self) -> bool {
        self.script.is_some()
    }

    /// Whether it is of WebAssembly: V8 calls its script so, which has no text.
    pub(super) fn is_wasm(&self) -> bool {
        let script = self.script.as_ref().filter(|script| !script.has_text);
        let file = script.and_then(|script| script.file.as_ref());
        file.is_some_and(|file| file.as_bytes().starts_with(b"wasm://wasm/"))
    }

    /// Whether it has a name.
    pub(super) const fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// Whether it starts at a character of its script.
    pub(super) fn starts_at(&self, offset: u64) -> bool {
        self.start == Some(offset)
    }

    /// A call of it, at a character of its script.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if its place cannot be read.
    pub(super) fn call<M: Memory>(
        &self,
        offset: Option<u64>,
        kind: CallKind,
        heap: &mut Heap<'_, '_, M>,
    ) -> Result<InterpretedFrame, Doubt> {
        let mut line = |offset: Option<u64>| match (&self.script, offset) {
            (Some(script), Some(offset)) => script.line(offset, heap),
            _ => Ok(None),
        };
        let (line, start) = (line(offset)?, line(self.start)?);
        let file = self.script.as_ref().and_then(|script| script.file.clone());
        let len = |text: &Option<Untrusted>| text.as_ref().map_or(0, |text| text.as_bytes().len());
        heap.memory.count(len(&self.name).saturating_add(len(&file)))?;
        let function = self.name.clone();
        Ok(InterpretedFrame {
            language: "javascript",
            kind,
            function,
            file,
            line,
            start,
            text: None,
        })
    }
}
