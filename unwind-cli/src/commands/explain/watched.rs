//! What a walk asks for, written down while it is asked.
//!
//! An explanation has no walk of its own: the sources of rows, the memory and what knows of code are
//! wrapped. gimli is asked afterwards where in the section a row is; nothing of the walk depends on it.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

use unwind_core::{
    Arch, FrameContext, Memory, ReadError, RegisterRules, ReturnAddresses, Row, RowSource, VirtAddr,
};
use unwind_x86::{StackSwitchError, StackSwitches, SwitchingFunctions, X86_64, X86_64Regs};

/// One thing that a walk has asked for, and the answer.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The row of an address.
    Lookup {
        /// Where it was looked up.
        source: Source,
        /// The address.
        addr: u64,
        /// The row, if there is one, or why it cannot be used.
        found: Result<Option<Row>, String>,
    },
    /// Bytes of the target.
    Read {
        /// Where.
        addr: u64,
        /// The bytes.
        bytes: Result<Vec<u8>, ReadError>,
    },
    /// Whether there is code at an address.
    Code {
        /// The last byte of what must have been a call.
        addr: u64,
        /// The answer.
        is_code: bool,
    },
    /// Whether a return address is that of a uretprobe.
    Trampoline {
        /// The address.
        addr: u64,
        /// The answer.
        is_trampoline: bool,
    },
}

/// Where rows are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `.sframe`.
    Sframe,
    /// `.eh_frame` and `.debug_frame`.
    CallFrames,
    /// What a compiler has told of its code.
    Dump,
    /// The code that a program starts with, and its stack.
    ProgramStart,
    /// The trampolines that signal handlers return to.
    SignalTrampolines,
    /// The instructions at the pc.
    Instructions,
    /// The call that has led to where there is no code.
    WildCall,
    /// The frame pointer, where nothing else is known.
    FramePointer,
    /// The instructions that lead back to another stack.
    StackSwitch,
    /// The instructions up to a `ret`, where a table leaves out what was pushed.
    Pushes,
}

/// What was asked for, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Rc<RefCell<Vec<Event>>>);

impl Log {
    fn add(&self, event: Event) {
        self.0.borrow_mut().push(event);
    }

    /// How often a row was looked up since then.
    fn lookups(&self) -> usize {
        let is_lookup = |event: &&Event| matches!(event, Event::Lookup { .. });
        self.0.borrow().iter().filter(is_lookup).count()
    }

    /// Whether the row that was found last is this one.
    fn has_row(&self, row: &Row) -> bool {
        let found = |event: &Event| match event {
            Event::Lookup { found: Ok(found), .. } => *found,
            _ => None,
        };
        self.0.borrow().iter().rev().find_map(found).as_ref() == Some(row)
    }

    /// What was asked for since the last call.
    pub(super) fn take(&self) -> Vec<Event> {
        self.0.take()
    }
}

/// A source of rows whose answers are written down.
#[derive(Clone, Debug)]
pub(super) struct Watched<S> {
    source: S,
    name: Source,
    log: Log,
}

impl<S> Watched<S> {
    pub(super) fn new(source: S, name: Source, log: &Log) -> Self {
        Self { source, name, log: log.clone() }
    }
}

impl<A: Arch, S: RowSource<A>> RowSource<A> for Watched<S>
where
    S::Error: Display,
{
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        let row = self.source.row(frame, mem);
        let found = row.as_ref().map(|row| *row).map_err(ToString::to_string);
        let addr = frame.lookup_addr().get();
        self.log.add(Event::Lookup { source: self.name, addr, found });
        row
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        self.source.register_rules(frame, mem)
    }
}

/// The same of functions that switch stacks: of their rows alone, since what another source
/// says is written down there.
#[derive(Clone, Debug)]
pub(super) struct WatchedSwitches<F, S> {
    source: StackSwitches<F, S>,
    log: Log,
}

impl<F, S> WatchedSwitches<F, S> {
    pub(super) fn new(source: StackSwitches<F, S>, log: &Log) -> Self {
        Self { source, log: log.clone() }
    }
}

impl<F: SwitchingFunctions, S: RowSource<X86_64>> RowSource<X86_64> for WatchedSwitches<F, S>
where
    S::Error: Display,
{
    type Error = StackSwitchError<S::Error>;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        let looked_up = self.log.lookups();
        let row = self.source.row(frame, mem);
        if self.log.lookups() == looked_up {
            let found = row.as_ref().map(|row| *row).map_err(ToString::to_string);
            let addr = frame.lookup_addr().get();
            self.log.add(Event::Lookup { source: Source::StackSwitch, addr, found });
        }
        row
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        self.source.register_rules(frame, mem)
    }
}

/// The same of a source around another one: of the rows that are its own.
#[derive(Clone, Debug)]
pub(super) struct WatchedAround<S> {
    source: S,
    name: Source,
    log: Log,
}

impl<S> WatchedAround<S> {
    pub(super) fn new(source: S, name: Source, log: &Log) -> Self {
        Self { source, name, log: log.clone() }
    }
}

impl<A: Arch, S: RowSource<A>> RowSource<A> for WatchedAround<S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        let row = self.source.row(frame, mem)?;
        if let Some(row) = row
            && !self.log.has_row(&row)
        {
            let addr = frame.lookup_addr().get();
            self.log.add(Event::Lookup { source: self.name, addr, found: Ok(Some(row)) });
        }
        Ok(row)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, S::Error> {
        self.source.register_rules(frame, mem)
    }
}

/// A memory whose reads are written down.
#[derive(Debug)]
pub(super) struct WatchedMemory<'m, M> {
    memory: &'m mut M,
    log: Log,
}

impl<'m, M> WatchedMemory<'m, M> {
    pub(super) fn new(memory: &'m mut M, log: &Log) -> Self {
        Self { memory, log: log.clone() }
    }
}

impl<M: Memory> Memory for WatchedMemory<'_, M> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let read = self.memory.read(addr, buf);
        let bytes = read.map(|()| buf.to_vec());
        self.log.add(Event::Read { addr: addr.get(), bytes });
        read
    }
}

/// What is known of return addresses, whose answers are written down.
#[derive(Debug)]
pub(super) struct WatchedCode<C> {
    code: C,
    log: Log,
}

impl<C> WatchedCode<C> {
    pub(super) fn new(code: C, log: &Log) -> Self {
        Self { code, log: log.clone() }
    }
}

impl<C: ReturnAddresses> ReturnAddresses for WatchedCode<C> {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        self.code.resolve(ra, slot)
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        let is_code = self.code.is_code(call);
        self.log.add(Event::Code { addr: call.get(), is_code });
        is_code
    }

    fn is_trampoline(&mut self, ra: VirtAddr) -> bool {
        let is_trampoline = self.code.is_trampoline(ra);
        self.log.add(Event::Trampoline { addr: ra.get(), is_trampoline });
        is_trampoline
    }
}
