//! The two ways in which an event gets its stacks.

use unwind_core::deferred::Cookie;

use super::{
    AddError, CpuEvent, CpuList, Deferral, DeliveryPolicy, EventSpec, PerCpuRegistry, RemoveError,
    RequestError, SampledTask, Subject, SwitchHold, TaskEvent, TaskWork,
};

/// How an event that wants user stacks gets them: through the registry if it is bound to a
/// CPU or the registry's policy is [`Broadcast`](DeliveryPolicy::Broadcast), by its own work on
/// the task if it follows one. Decided once, when the event is created.
///
/// An event with a task *and* a CPU goes to the registry: it is what a
/// profiler opens for each CPU to follow a task and its children.
///
/// The work that [`request`](Self::request) and [`remove`](Self::remove) take is that of the event's
/// task, and unused if it has no task. Who has none at all uses the registry with the event in
/// [`Cpu`](Self::Cpu).
#[derive(Debug)]
pub enum Receiver {
    /// It is in the registry.
    Cpu(CpuEvent),
    /// It has work of its own.
    Task(TaskEvent),
}

impl Receiver {
    /// Sets an event up in the way that it needs.
    ///
    /// # Errors
    ///
    /// [`AddError`]; [`AddError::NoCpu`] if it has neither a CPU nor a task.
    pub fn open<D: Deferral, S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
        registry: &PerCpuRegistry<S, EVENTS>,
        core: &D,
        spec: EventSpec,
    ) -> Result<Self, AddError> {
        match spec.task {
            Some(_) if spec.cpu < 0 && registry.policy() == DeliveryPolicy::FirstLive => {
                Ok(Self::Task(TaskEvent::new()))
            }
            _ => registry.add(core, spec).map(Self::Cpu),
        }
    }

    /// Asks for the user stack of `task`, which is the one that runs on this
    /// CPU, as `sampled` describes it; it is `subject` to the host. Any context, NMI
    /// included.
    ///
    /// Returns the cookie that the record of the stack will have.
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    pub fn request<D: Deferral, S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
        &self,
        registry: &PerCpuRegistry<S, EVENTS>,
        core: &D,
        sampled: SampledTask,
        (task, subject): (&D::Task, impl Subject),
        own: (&impl TaskWork, &SwitchHold),
    ) -> Result<Cookie, RequestError> {
        if !sampled.has_user_stack() {
            return Err(RequestError::NotUser);
        }
        match self {
            Self::Cpu(event) => registry.request(core, task, subject, event),
            Self::Task(event) => event.request(own.0, own.1),
        }
    }

    /// Removes the event. Task context; waits for its deliveries.
    ///
    /// # Errors
    ///
    /// [`RemoveError`], which says what has changed.
    pub fn remove<D: Deferral, S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize>(
        &self,
        registry: &PerCpuRegistry<S, EVENTS>,
        core: &D,
        current: Option<&D::Task>,
        own: (&impl TaskWork, &SwitchHold),
    ) -> Result<(), RemoveError> {
        match self {
            Self::Cpu(event) => registry.remove(core, current, *event),
            Self::Task(event) => event.remove(own.0, own.1),
        }
    }
}
