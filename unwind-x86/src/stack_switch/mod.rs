//! Functions that call on another stack than the one they were called on.
//!
//! The way back is in the code: the instructions from the call to the `ret`, a few loads and moves,
//! are followed from what is known of the frame and from the base of the thread's own memory. Offsets
//! in Go's structures, which change from version to version, are in these instructions, too. What they
//! do not lead to is not guessed: a frame pointer would skip the caller. Such a row has the CFA itself,
//! and is the only one by which the CFA may fall; the limit of frames ends what runs in a circle.

mod way_back;

use core::convert::Infallible;
use core::fmt;
use core::ops::Range;

use unwind_core::{
    FrameContext, FramePc, Memory, Origin, ReadError, RegisterRules, Row, RowKey, RowSource,
    TableError, VirtAddr,
};

use self::way_back::{FollowError, Followed, Follower};
use crate::code::Window;
use crate::x86_64::{X86_64, X86_64Regs};

/// A function that changes to another stack, calls there, and changes back.
///
/// No table can say where its caller is: the stack pointer of the frame tells nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchingFunction {
    /// Its code.
    pub code: Range<u64>,
    /// How it gets back.
    pub way_back: WayBack,
}

/// How a function gets back to the stack that it was called on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WayBack {
    /// By the instructions after its call: loads, moves and sums up to a `ret`, which are
    /// followed. Go's `runtime.systemstack` and `runtime.asmcgocall`, and most of what others
    /// have written by hand.
    Instructions,
    /// Not at all. What it was called by does not wait for it, so the stack ends with it, as
    /// in Go's own traces: `runtime.mcall`, which leaves its goroutine for others to continue.
    Never,
    /// Where `runtime.systemstack`, which is at this address, would get back to, but not by a
    /// return: what was called last is continued at the pc that is saved after that stack
    /// pointer. Go's `runtime.morestack`.
    Continued(VirtAddr),
    /// By its frame pointer, which it sets before it changes stacks and does not change until it is
    /// back: Go's `runtime.nanotime1`, which keeps the stack pointer in a register that a walk does
    /// not have.
    FramePointer,
}

/// Who knows of [functions that switch stacks](SwitchingFunction).
pub trait SwitchingFunctions {
    /// The one that has code at this address.
    fn find(&self, addr: VirtAddr) -> Option<SwitchingFunction>;
}

impl SwitchingFunctions for &[SwitchingFunction] {
    fn find(&self, addr: VirtAddr) -> Option<SwitchingFunction> {
        self.iter().find(|function| function.code.contains(&addr.get())).cloned()
    }
}

/// The rows of another source, but for code that has switched stacks: there its tables do not
/// hold, and rows lead to the stack before.
#[derive(Clone, Copy, Debug)]
pub struct StackSwitches<F, S> {
    functions: F,
    thread_pointer: Option<u64>,
    source: S,
}

impl<F: SwitchingFunctions, S: RowSource<X86_64>> StackSwitches<F, S> {
    /// The rows of `source`, but for these functions.
    #[must_use]
    pub const fn new(functions: F, source: S) -> Self {
        Self { functions, thread_pointer: None, source }
    }

    /// The base of the thread's `fs` segment, by which code finds what is the thread's own. Go's
    /// functions need it.
    #[must_use]
    pub fn thread_pointer(self, fs_base: u64) -> Self {
        Self { thread_pointer: Some(fs_base), ..self }
    }

    /// The row of a frame in a function that calls on another stack; `None` if it has not
    /// switched yet, as far as can be told.
    fn row_of<M: Memory>(
        &self,
        function: &SwitchingFunction,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, FollowError> {
        if function.way_back == WayBack::FramePointer {
            let keeps = keeps_frame_pointer(function, frame.pc().addr(), mem);
            let cfa = frame.fp().filter(|_| keeps).and_then(|fp| fp.checked_add(16));
            return Ok(cfa.map(|cfa| Row::other_stack(cfa, -8, false)));
        }
        let FramePc::Return(pc) = frame.pc() else {
            // Before its call its caller may be on either stack. After it the same
            // instructions lead back; they are none of those before, which a branch or a call
            // separates from the `ret`.
            return match function.way_back {
                WayBack::Instructions => match self.follow(frame.pc().addr(), frame, mem) {
                    Err(FollowError::Absent) => Err(FollowError::Absent),
                    followed => Ok(followed.ok().and_then(returned)),
                },
                WayBack::Never | WayBack::Continued(_) | WayBack::FramePointer => Ok(None),
            };
        };
        match function.way_back {
            WayBack::Never => Ok(Some(Row::outermost())),
            WayBack::Instructions => self
                .follow(pc, frame, mem)
                .and_then(|to| returned(to).ok_or(FollowError::Unknown))
                .map(Some),
            WayBack::Continued(switch) => self.continued(switch, frame, mem).map(Some),
            WayBack::FramePointer => Ok(None),
        }
    }

    fn follow<M: Memory>(
        &self,
        pc: VirtAddr,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Followed, FollowError> {
        Follower::new(frame, self.thread_pointer, mem).follow(pc)
    }

    /// The row of a frame that continues what the function at `switch` would return to.
    fn continued<M: Memory>(
        &self,
        switch: VirtAddr,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Row, FollowError> {
        let code = Window::<CODE>::after(switch, mem);
        let calls = code.bytes().windows(2).enumerate();
        let calls = calls.filter(|(_, bytes)| matches!(bytes, [0xff, 0xd0..=0xd7]));
        for (at, _) in calls {
            let after =
                u64::try_from(at).ok().and_then(|at| switch.checked_add(at.wrapping_add(2)));
            match after.map(|after| self.follow(after, frame, mem)) {
                Some(Ok(Followed { sp, sp_from: Some(from), .. })) => {
                    let offset = from.wrapping_add(8).wrapping_sub(sp);
                    let offset = i64::from_ne_bytes(offset.to_ne_bytes());
                    let offset = i32::try_from(offset).map_err(|_| FollowError::Unknown)?;
                    return Ok(Row::other_stack(sp, offset, false));
                }
                // Nothing is left to continue.
                Some(Err(FollowError::Null)) => return Ok(Row::outermost()),
                Some(Err(FollowError::Absent)) => return Err(FollowError::Absent),
                _ => {}
            }
        }
        Err(FollowError::Unknown)
    }
}

/// How much code of a function is searched for its call.
const CODE: usize = 256;

/// `lea N(%rsp), %rbp`, and `mov N(%rsp), %rbp`, which takes the caller's back, without their numbers.
const SET: [u8; 4] = [0x48, 0x8d, 0x6c, 0x24];
const TAKE_BACK: [u8; 4] = [0x48, 0x8b, 0x6c, 0x24];
const RET: [u8; 1] = [0xc3];

/// Whether a function has its frame pointer where the pc is: after the instruction that sets it, but not
/// from the one that takes the caller's back to the `ret`.
fn keeps_frame_pointer<M: Memory>(function: &SwitchingFunction, pc: VirtAddr, mem: &mut M) -> bool {
    let code = Window::<CODE>::after(VirtAddr::new(function.code.start), mem);
    let after = |start: usize, bytes: &[u8]| {
        let rest = code.bytes().get(start..)?;
        let at = rest.windows(bytes.len()).position(|window| window == bytes)?;
        // Where it begins.
        start.checked_add(at)
    };
    let offset = pc.get().checked_sub(function.code.start).and_then(|at| usize::try_from(at).ok());
    let (Some(offset), Some(set)) = (offset, after(0, &SET)) else { return false };
    let Some(back) = after(set, &TAKE_BACK) else { return false };
    // The numbers are one byte more.
    let Some(ret) = after(back.saturating_add(5), &RET) else { return false };
    offset > set.saturating_add(4) && (offset <= back || offset > ret)
}

/// The row of a frame whose instructions lead to this return.
fn returned(followed: Followed) -> Option<Row> {
    let cfa = followed.sp.checked_add(8)?;
    Some(Row::other_stack(cfa, -8, followed.keeps_fp))
}

impl<F: SwitchingFunctions, S: RowSource<X86_64>> RowSource<X86_64> for StackSwitches<F, S> {
    type Error = StackSwitchError<S::Error>;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        if let Some(function) = self.functions.find(frame.lookup_addr()) {
            let row = self.row_of(&function, frame, mem).map_err(|lost| match lost {
                FollowError::Absent => StackSwitchError::Absent,
                FollowError::Null | FollowError::Unknown => StackSwitchError::NoWayBack,
            })?;
            if let Some(row) = row {
                return Ok(Some(row.with_origin(Origin::Instructions)));
            }
        }
        self.source.row(frame, mem).map_err(StackSwitchError::Source)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        if self.functions.find(frame.lookup_addr()).is_some() {
            return Ok(None);
        }
        self.source.register_rules(frame, mem).map_err(StackSwitchError::Source)
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        match self.functions.find(addr) {
            Some(_) => None,
            None => self.source.row_key(addr),
        }
    }
}

/// Why there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackSwitchError<E> {
    /// The other source's reason.
    Source(E),
    /// Memory that leads to the stack before is absent.
    Absent,
    /// A function has switched stacks, and where it came from cannot be told.
    NoWayBack,
}

impl<E> From<Infallible> for StackSwitchError<E> {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl<E: TableError> TableError for StackSwitchError<E> {
    fn is_not_resident(&self) -> bool {
        match self {
            Self::Source(error) => error.is_not_resident(),
            Self::Absent => true,
            Self::NoWayBack => false,
        }
    }

    /// The other source's, or 65,534 and 65,535.
    fn code(&self) -> u16 {
        match self {
            Self::Source(error) => error.code(),
            Self::Absent => 0xfffe,
            Self::NoWayBack => 0xffff,
        }
    }
}

impl<E: fmt::Display> fmt::Display for StackSwitchError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Absent => f.write_str("what leads to the stack before is absent"),
            Self::NoWayBack => f.write_str("stacks were switched, and the one before is unknown"),
        }
    }
}

impl From<ReadError> for FollowError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotResident => Self::Absent,
            _ => Self::Unknown,
        }
    }
}
