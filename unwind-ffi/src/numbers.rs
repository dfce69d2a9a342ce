//! The numbers of the interface. They stay the same in later versions; new ones may come.
//!
//! Those of outcomes, ends, samples and origins are what `code` returns in the library;
//! `tests/numbers.rs` compares.

/// What a function returns that could not do what it was asked for: less than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_error {
    /// A pointer is NULL that must not be.
    Null = -1,
    /// A pointer is not aligned to 8 bytes, or to 64 where it points to rows.
    Misaligned = -2,
    /// There is less memory than it takes.
    TooSmall = -3,
    /// The memory was not initialised, or a number is none of those that it may be.
    Invalid = -4,
    /// A trace, rows or a scratch are in use by a call that this one has interrupted, or is made in.
    InUse = -5,
    /// 32 clients are registered.
    TooManyClients = -6,
    /// The client is not registered, or someone else cancels it.
    UnknownClient = -7,
    /// The task that calls is in a delivery to this client, and would wait for itself.
    OwnDelivery = -8,
    /// unwind_host_relax has given up. The client is registered as before: call again to wait longer.
    StillRunning = -9,
    /// The module has no address.
    EmptyRange = -10,
    /// The module has an address of another one.
    Overlap = -11,
    /// There is no room for another module.
    Full = -12,
    /// Another change of the space is under way.
    Busy = -13,
}

impl unwind_error {
    /// The number.
    #[expect(clippy::as_conversions, reason = "the number that it is")]
    pub(crate) const fn number(self) -> i32 {
        self as i32
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_outcome {
    /// A delivery to the client will follow.
    Queued = 1,
    /// The client has asked in this kernel entry before, and the delivery is still to come.
    AlreadyPending = 2,
    /// The delivery to the client has gone out in this entry, with this cookie.
    AlreadyExecuted = 3,
    /// There will be no delivery, as with all numbers from here on: the task is a kernel thread.
    RefusedKernelThread = 17,
    /// The task never returns to user code.
    RefusedUserWorker = 18,
    /// The task is closed: it exits, or executes another program.
    RefusedExiting = 19,
    /// The task has no saved user registers.
    RefusedNoUserRegisters = 20,
    /// Never returned here: NMIs may make a compare-exchange.
    RefusedNmiUnsafe = 21,
    /// The client is not registered.
    RefusedUnknownClient = 22,
    /// unwind_host_schedule has failed.
    RefusedScheduleFailed = 23,
    /// Never returned here: there is a cookie on each CPU.
    RefusedNoCookie = 24,
}

/// How the samples end that have the cookie of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_sample {
    /// The whole stack has come.
    Matched = 1,
    /// A part of the stack has come.
    Truncated = 2,
    /// There is no stack: no trace was lent, or the walk has found no frame.
    StackLost = 3,
    /// The task has ended before its stack was walked.
    TaskGone = 4,
    /// The task has executed another program before its stack was walked.
    Exec = 5,
    /// Of a sample whose request was refused; no delivery has it.
    Inline = 6,
}

/// Why a walk has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_end {
    /// No walk was done.
    None = 0,
    /// The last frame is the outermost one, as its row says.
    Outermost = 1,
    /// The last frame is the outermost one: its return address is zero.
    ZeroReturnAddress = 2,
    /// There are more frames than the trace has room for.
    FrameLimit = 3,
    /// Nothing knows the code of the last frame.
    NoRow = 4,
    /// The task runs in a mode whose stacks are not walked.
    NotWalkable = 5,
    /// The table of the last frame's code is malformed, or cannot be read.
    Table = 6,
    /// A step failed, as with all numbers from here on: a word of the stack could not be read.
    Unreadable = 33,
    /// The caller's frame would not be above this one.
    NoProgress = 34,
    /// The frame's address is not a multiple of a word.
    Misaligned = 35,
    /// The frame is above the stack's end.
    BeyondStack = 36,
    /// The return address can be none.
    NonCanonical = 37,
    /// The return address is not code. Never of this interface.
    NotCode = 38,
    /// The return address is zero, and a guess led there.
    StepZeroReturnAddress = 39,
    /// The frame pointer is zero.
    ZeroFramePointer = 40,
    /// The frame pointer is below the stack.
    FramePointerBelowStack = 41,
    /// A register is needed that is not known in this frame.
    UnknownRegister = 42,
    /// An address is beyond the address space.
    Overflow = 43,
    /// A row has a rule that cannot be right.
    BadRule = 44,
    /// A signal trampoline that no kernel makes.
    UnknownTrampoline = 45,
    /// The return address is that of a probe. Never of this interface.
    ReturnProbe = 46,
    /// The caller is beside a zero that may be the end of the stack.
    CallerBesideZero = 47,
}

/// Who has found the row that led to a frame: the low three bits of its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_origin {
    /// The registers of the walk: the first frame.
    Registers = 0,
    /// An SFrame table.
    Table = 1,
    /// Call frame information, or an SFrame table that was made of it.
    CallFrames = 2,
    /// The frame pointer.
    FramePointer = 3,
    /// The instructions.
    Instructions = 4,
    /// The registers that the kernel saved for a signal handler.
    SignalContext = 5,
    /// Never of this interface.
    BranchRecord = 6,
    /// Never of this interface.
    Host = 7,
}

/// Bit of a provenance: the address is where execution stands, and not a return address.
pub const UNWIND_EXACT: u8 = 1 << 3;
/// Bit of a provenance: a row failed, and the frame pointer took its place.
pub const UNWIND_AFTER_FAILURE: u8 = 1 << 4;
/// Bit of a provenance: the return address was a trampoline's. Never of this interface.
pub const UNWIND_AFTER_TRAMPOLINE: u8 = 1 << 5;
/// Bit of a provenance: callers may be missing before this frame.
pub const UNWIND_AFTER_GAP: u8 = 1 << 6;
/// Bit of a provenance: the frame pointer was taken as unchanged against the row.
pub const UNWIND_FP_ASSUMED: u8 = 1 << 7;

/// What a task is when its stack is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_task_kind {
    /// It runs user code, and will return to it.
    User = 0,
    /// It has no user code.
    KernelThread = 1,
    /// It has the memory of a user task but never returns to user code, as an I/O worker.
    UserWorker = 2,
    /// It will not return to user code any more.
    Exiting = 3,
    /// It has no saved user registers, or nothing would deliver.
    NoUserRegisters = 4,
}

impl unwind_task_kind {
    /// The variant of a number, if it has one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::User,
            1 => Self::KernelThread,
            2 => Self::UserWorker,
            3 => Self::Exiting,
            4 => Self::NoUserRegisters,
            _ => return None,
        })
    }
}

/// What a read of the target's memory comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_read {
    /// All bytes were read.
    Done = 0,
    /// The page is absent, and was not brought in: the same read may work in a walk that may fault.
    Absent = 1,
    /// Nothing is mapped there, or it is not the target's to read. So is any other number.
    Invalid = 2,
}

/// What is known of the code of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_format {
    /// It is known to have no table: nobody is asked again.
    None = 0,
    /// `.sframe`, versions 1 to 3, at `table`, in `table_len` bytes.
    Sframe = 1,
    /// `.eh_frame`, found by its search table `.eh_frame_hdr`, which is at `table`.
    EhFrame = 2,
    /// All its functions keep a frame pointer, for which the host vouches.
    FramePointers = 3,
    /// A table in SFrame's format that was made of call frame information, as `unwind sframe
    /// build` does: as Sframe, but its frames say so.
    SframeOfCallFrames = 4,
    /// Its table is still to come: a walk ends there with UNWIND_END_TABLE and may be done again; no caller is guessed.
    Awaited = 5,
}

impl unwind_format {
    /// The number.
    #[expect(clippy::as_conversions, reason = "the number that it is")]
    pub(crate) const fn number(self) -> u32 {
        self as u32
    }
}

impl unwind_format {
    /// The variant of a number, if it has one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Sframe,
            2 => Self::EhFrame,
            3 => Self::FramePointers,
            4 => Self::SframeOfCallFrames,
            5 => Self::Awaited,
            _ => return None,
        })
    }
}

/// The code that registers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_mode {
    /// 64-bit code.
    Long = 0,
    /// 32-bit code, in flat segments unless bases are given.
    Compat = 1,
    /// VM86, whose stacks are not walked: UNWIND_END_NOT_WALKABLE.
    Vm86 = 2,
}

impl unwind_mode {
    /// The variant of a number, if it has one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Long,
            1 => Self::Compat,
            2 => Self::Vm86,
            _ => return None,
        })
    }
}

/// Flag of a walk: reads go to unwind_host_read, which may fault and sleep, and modules that
/// are not known to unwind_host_find_module. Without it reads go to unwind_host_read_nofault.
pub const UNWIND_MAY_FAULT: u32 = 1;
/// Flag of a walk: addresses have 57 bits and not 48.
pub const UNWIND_FIVE_LEVEL: u32 = 2;
/// Flag of a walk: the code has no red zone, as a kernel's.
pub const UNWIND_NO_RED_ZONE: u32 = 4;

/// To whom a delivery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_recipients {
    /// To the clients that asked.
    Requesters = 0,
    /// To all clients if one of them asked: each compares the cookie with those it knows.
    AllClients = 1,
}

impl unwind_recipients {
    /// The variant of a number, if it has one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Requesters,
            1 => Self::AllClients,
            _ => return None,
        })
    }
}

/// Why there is no stack to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_loss {
    /// The task has ended, and its memory with it.
    TaskGone = 0,
    /// The task has executed another program.
    Exec = 1,
}

impl unwind_loss {
    /// The variant of a number, if it has one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::TaskGone,
            1 => Self::Exec,
            _ => return None,
        })
    }
}

/// Whether a task may continue to user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum unwind_return {
    /// It may, and the kernel entry is over.
    Ready = 0,
    /// Something is to be delivered first; the entry continues.
    Pending = 1,
}

impl unwind_return {
    /// The number.
    #[expect(clippy::as_conversions, reason = "the number that it is")]
    pub(crate) const fn number(self) -> i32 {
        self as i32
    }
}
