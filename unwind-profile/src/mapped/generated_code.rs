//! Code that V8 makes: the compiled JavaScript of node and others, and the built-in functions
//! that it brings along. Neither has tables, and all of it keeps frame pointers where it calls.
//!
//! So a return address in such code is that of a function whose frame pointer is its own. Where
//! a function was interrupted it may not have set it yet, or no longer.

use std::convert::Infallible;
use std::ops;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource, VirtAddr};
use unwind_x86::FunctionBounds;

use crate::mapped::address_spaces::Space;
use crate::mapped::ranges::Range;

/// Rows of return addresses in code of V8, in a recording.
#[derive(Clone, Copy, Debug)]
pub struct V8Returns<'s> {
    pub space: &'s Space,
}

impl<A: Arch> RowSource<A> for V8Returns<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let is_return = !frame.pc().is_exact() && self.is_of_v8(frame.lookup_addr().get());
        Ok(is_return.then(|| Row::frame_pointer(A::WORD)))
    }
}

impl V8Returns<'_> {
    /// Whether the program has moved code of V8 to other memory, where the kernel does not know it.
    pub(crate) fn is_moved(self) -> bool {
        let is_it = |range: &Range| range.is_moved && range.executable && range.file.has_v8();
        self.space.find_range(&is_it).is_some()
    }

    /// Whether an address is in code of V8 whose calls are read: that which it makes, or a builtin function.
    pub(crate) fn calls_are_read_at(self, addr: u64) -> Option<V8Code> {
        let range = self.space.find(addr).filter(|range| range.executable)?;
        if range.file.has_code() && !range.file.is_jit() {
            let builtins = range.file.has_v8().then(|| range.file.builtins()).flatten()?;
            return builtins.contains(&range.link_time(addr)?).then_some(V8Code::Builtin);
        }
        let is_read = |range: &Range| {
            range.executable && range.file.has_v8() && range.file.builtins().is_some()
        };
        self.space.find_range(&is_read).map(|_| V8Code::Made)
    }

    /// Whether code without a table is V8's.
    fn is_of_v8(self, addr: u64) -> bool {
        let Some(range) = self.space.find(addr).filter(|range| range.executable) else {
            return false;
        };
        if range.file.has_code() && !range.file.is_jit() {
            // What V8 has in C++ has tables.
            return range.file.has_v8();
        }
        let has_v8 = |range: &Range| range.executable && range.file.has_v8();
        self.space.find_range(&has_v8).is_some()
    }
}

/// What code of V8 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum V8Code {
    /// A builtin function.
    Builtin,
    /// What it has compiled.
    Made,
}

/// Where functions that compilers have told of begin and end.
#[derive(Clone, Copy, Debug)]
pub struct ToldBounds<'s> {
    pub space: &'s Space,
}

impl FunctionBounds for ToldBounds<'_> {
    fn find(&self, addr: VirtAddr) -> Option<ops::Range<VirtAddr>> {
        let range = self.space.find(addr.get()).filter(|range| range.file.is_function())?;
        Some(VirtAddr::new(range.start)..VirtAddr::new(range.end))
    }
}

/// Where a function of V8 begins and ends. All of them are called.
#[derive(Clone, Debug)]
pub(crate) struct V8Function(ops::Range<u64>);

impl V8Function {
    /// That at an address: one that an engine has told of, or a builtin one.
    pub(crate) fn at(addr: u64, told: Option<&ops::Range<u64>>, space: &Space) -> Option<Self> {
        let builtin = || builtin_function(space.find(addr)?, addr);
        told.cloned().or_else(builtin).map(Self)
    }
}

impl FunctionBounds for V8Function {
    fn find(&self, addr: VirtAddr) -> Option<ops::Range<VirtAddr>> {
        let Self(function) = self;
        let bounds = VirtAddr::new(function.start)..VirtAddr::new(function.end);
        function.contains(&addr.get()).then_some(bounds)
    }

    fn are_called(&self) -> bool {
        true
    }
}

/// The builtin function of V8 at an address of a file.
fn builtin_function(range: &Range, addr: u64) -> Option<ops::Range<u64>> {
    let in_file = range.link_time(addr)?;
    let builtins = range.file.has_v8().then(|| range.file.builtins()).flatten()?;
    let (start, aliases) = range.file.function(in_file).filter(|_| builtins.contains(&in_file))?;
    // What sets up a frame for the code that calls it takes its return address off the stack.
    let is_prologue =
        |alias: &unwind_target::symbols::Alias| alias.name.ends_with(b"OutOfLinePrologue");
    if aliases.iter().any(is_prologue) {
        return None;
    }
    let end = aliases.iter().map(|alias| alias.end).max().filter(|&end| end > in_file)?;
    let bias = addr.wrapping_sub(in_file);
    Some(start.wrapping_add(bias)..end.wrapping_add(bias))
}
