//! What an event asks of AUX tracing, and whether it may have it.

use core::fmt;

use bitflags::bitflags;

use crate::Errno;

bitflags! {
    /// The field `aux_action` of `perf_event_attr`.
    ///
    /// | bit | name | on which event |
    /// |---|---|---|
    /// | 0 | `start_paused` | the AUX event |
    /// | 1 | `pause` | a trigger |
    /// | 2 | `resume` | a trigger |
    /// | 3-31 | reserved, zero | |
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AuxAction: u32 {
        /// The AUX event does not trace until it is resumed.
        const START_PAUSED = 1 << 0;
        /// The trigger pauses the AUX event.
        const PAUSE = 1 << 1;
        /// The trigger resumes the AUX event.
        const RESUME = 1 << 2;
    }
}

impl AuxAction {
    /// Nothing asked.
    pub const NONE: Self = Self::empty();

    /// The action that the field of an attr asks for.
    ///
    /// # Errors
    ///
    /// [`AuxError::ReservedBits`] if any but the lowest three is set.
    pub const fn from_field(bits: u32) -> Result<Self, AuxError> {
        match Self::from_bits(bits) {
            Some(action) => Ok(action),
            None => Err(AuxError::ReservedBits(
                Self::from_bits_retain(bits).difference(Self::all()).bits(),
            )),
        }
    }
}

bitflags! {
    /// What a PMU can do: the bits of Linux's `PERF_PMU_CAP_*`. Those without a name are
    /// kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PmuCapabilities: u32 {
        /// `PERF_PMU_CAP_AUX_OUTPUT`: its events can write into an AUX buffer.
        const AUX_OUTPUT = 0x0080;
        /// `PERF_PMU_CAP_AUX_PAUSE`: its tracing can be paused and resumed.
        const AUX_PAUSE = 0x0200;
        /// Samples can have the content of its AUX buffer. Linux has no such bit, since
        /// its PMUs have a hook instead. This bit is above all of Linux's.
        const AUX_SNAPSHOT = 1 << 31;
    }
}

impl PmuCapabilities {
    /// None of those that matter here.
    pub const NONE: Self = Self::empty();
}

/// Who opens an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Creator {
    /// A program, by `perf_event_open`.
    User,
    /// The kernel, for a counter of its own.
    Kernel,
}

/// The fields of `perf_event_attr` that concern AUX tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuxAttr {
    /// `aux_action`.
    pub action: AuxAction,
    /// `aux_output`: the event writes its records into its leader's AUX
    /// buffer.
    pub output: bool,
    /// `aux_sample_size`: how many bytes of the leader's AUX buffer go into
    /// each sample.
    pub sample_size: u32,
}

impl AuxAttr {
    /// Checks what an event asks for, when it is opened.
    ///
    /// `pmu` is what the event's own PMU can do, `leader` what the PMU of its
    /// group's leader can do; `None` if the event leads its group.
    ///
    /// # Errors
    ///
    /// The first of these that applies, each with the [`Errno`] of Linux: a
    /// kernel's own counter that asks for anything; output that the PMU cannot
    /// do or that comes with a pause or resume; pause with resume; a paused
    /// start that the PMU cannot do; output, samples or a trigger without a leader;
    /// output and samples together; a trigger whose leader cannot be paused; samples
    /// whose leader has no snapshots.
    ///
    /// The host has to check that the leader takes AUX output of this very PMU.
    pub fn check(
        self,
        pmu: PmuCapabilities,
        creator: Creator,
        leader: Option<PmuCapabilities>,
    ) -> Result<AuxRole, AuxError> {
        let role = self.check_pmu(pmu, creator)?;
        self.check_leader(leader)?;
        Ok(role)
    }

    /// What the event's own PMU decides.
    pub(crate) fn check_pmu(
        self,
        pmu: PmuCapabilities,
        creator: Creator,
    ) -> Result<AuxRole, AuxError> {
        if creator == Creator::Kernel && (self.output || self.action != AuxAction::NONE) {
            return Err(AuxError::KernelCounter);
        }
        if self.output && !pmu.contains(PmuCapabilities::AUX_OUTPUT) {
            return Err(AuxError::OutputNotSupported);
        }
        let pause = self.action.contains(AuxAction::PAUSE);
        let resume = self.action.contains(AuxAction::RESUME);
        if self.output && (pause || resume) {
            return Err(AuxError::OutputWithTrigger);
        }
        let trigger = match (pause, resume) {
            (true, true) => return Err(AuxError::PauseAndResume),
            (true, false) => Some(TriggerAction::Pause),
            (false, true) => Some(TriggerAction::Resume),
            (false, false) => None,
        };
        let start_paused = self.action.contains(AuxAction::START_PAUSED);
        if start_paused && !pmu.contains(PmuCapabilities::AUX_PAUSE) {
            return Err(AuxError::StartPausedNotSupported);
        }
        Ok(AuxRole { start_paused, trigger })
    }

    /// The checks that depend on the PMU of the group's leader.
    pub(crate) fn check_leader(self, leader: Option<PmuCapabilities>) -> Result<(), AuxError> {
        let has_trigger = self.action.intersects(AuxAction::PAUSE.union(AuxAction::RESUME));
        if !self.output && self.sample_size == 0 && !has_trigger {
            return Ok(());
        }
        let Some(leader) = leader else { return Err(AuxError::NoAuxLeader) };
        if self.output && self.sample_size != 0 {
            return Err(AuxError::OutputAndSamples);
        }
        if has_trigger && !leader.contains(PmuCapabilities::AUX_PAUSE) {
            return Err(AuxError::NoAuxLeader);
        }
        if self.sample_size != 0 && !leader.contains(PmuCapabilities::AUX_SNAPSHOT) {
            return Err(AuxError::SnapshotNotSupported);
        }
        Ok(())
    }

    /// Whether the event's PMU may collect several samples before it
    /// interrupts (large PEBS).
    ///
    /// It may not if each sample has to be handled when it is taken: otherwise
    /// an action would come late, and the AUX buffer would hold other data by
    /// then.
    #[must_use]
    pub const fn allows_sample_batching(self) -> bool {
        let trigger = self.action.intersects(AuxAction::PAUSE.union(AuxAction::RESUME));
        !trigger && self.sample_size == 0
    }
}

/// What an event does in AUX tracing: the outcome of [`AuxAttr::check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AuxRole {
    /// Its own tracing starts paused.
    pub start_paused: bool,
    /// What the event does to its group leader when it overflows.
    pub trigger: Option<TriggerAction>,
}

/// What a trigger does to the AUX event of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerAction {
    /// Pauses it, before the trigger's own sample.
    Pause,
    /// Resumes it, after the trigger's own sample.
    Resume,
}

/// Why an event cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuxError {
    /// These reserved bits of `aux_action` are set.
    ReservedBits(u32),
    /// A counter of the kernel's own asks for an AUX action or AUX output.
    KernelCounter,
    /// The PMU cannot write into an AUX buffer.
    OutputNotSupported,
    /// AUX output together with pause or resume.
    OutputWithTrigger,
    /// Pause and resume on one event.
    PauseAndResume,
    /// The PMU cannot start paused.
    StartPausedNotSupported,
    /// Output, samples or a trigger outside a group whose leader is an AUX event, for
    /// a trigger one that can be paused.
    NoAuxLeader,
    /// AUX output and AUX samples on one event.
    OutputAndSamples,
    /// The leader's PMU cannot put the content of its AUX buffer into a sample.
    SnapshotNotSupported,
}

impl AuxError {
    /// What Linux gives back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::OutputNotSupported | Self::OutputWithTrigger | Self::StartPausedNotSupported => {
                Errno::NotSupported
            }
            Self::ReservedBits(_)
            | Self::KernelCounter
            | Self::PauseAndResume
            | Self::NoAuxLeader
            | Self::OutputAndSamples
            | Self::SnapshotNotSupported => Errno::InvalidArgument,
        }
    }
}

impl fmt::Display for AuxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedBits(bits) => write!(f, "reserved bits of aux_action: {bits:#x}"),
            Self::KernelCounter => f.write_str("AUX action or output on a kernel's own counter"),
            Self::OutputNotSupported => f.write_str("the PMU has no AUX output"),
            Self::OutputWithTrigger => f.write_str("AUX output on an event that pauses or resumes"),
            Self::PauseAndResume => f.write_str("pause and resume on one event"),
            Self::StartPausedNotSupported => f.write_str("the PMU's tracing cannot be paused"),
            Self::NoAuxLeader => f.write_str("the group is not led by an AUX event that allows it"),
            Self::OutputAndSamples => f.write_str("AUX output and AUX samples on one event"),
            Self::SnapshotNotSupported => f.write_str("the leader's PMU gives no AUX samples"),
        }
    }
}

impl core::error::Error for AuxError {}
