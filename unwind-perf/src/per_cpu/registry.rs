//! The events of all CPUs.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::fmt;

use unwind_core::deferred::{ClientId, Cookie, RequestOutcome};

use super::chain::{Chain, PlaceIndex};
use super::event::{CpuEvent, DeliveryPolicy, EventKey, EventSpec, GroupLeader, TaskKey};
use super::owners::Owners;
use super::place::{Generation, Occupant, Place};
use super::subject::{Filter, GroupKey, Subject};
use super::{AddError, CpuList, Deferral, RemoveError, RequestError};
#[cfg(not(loom))]
use crate::sync::atomics;
use crate::sync::{AtomicU32, Ordering, Statistic, const_unless_loom};

/// The events of all CPUs, and a client of the deferral core for each profiler
/// that has some.
///
/// `S` is one [`CpuList`] for each CPU *number*, with room for `EVENTS` events
/// on each: an array, or a vector if the number of CPUs is known only when the
/// system runs. CPU numbers may have gaps: what counts is the highest one.
///
/// Lists after those of the CPUs are spare ([`with_spare`](Self::with_spare)): a CPU whose
/// list is full takes one and keeps it. Where tasks that are profiled fork, each child has
/// an event on each CPU, so that there are as many events as tasks.
pub struct PerCpuRegistry<S, const EVENTS: usize> {
    policy: DeliveryPolicy,
    owners: Owners,
    lists: S,
    /// How many of the lists are CPUs'.
    cpus: usize,
    /// How many of the others are taken. Changed under the lock.
    taken: AtomicU32,
    /// The events without a CPU.
    any_cpu: CpuList<EVENTS>,
    /// Counts requests for events of CPUs that this registry does not have.
    stale_requests: Statistic,
    other_task: Statistic,
    unknown_cpu: Statistic,
}

/// A registry for CPU numbers below `CPUS`. Nothing is ever allocated.
pub type FixedRegistry<const CPUS: usize, const EVENTS: usize> =
    PerCpuRegistry<[CpuList<EVENTS>; CPUS], EVENTS>;

/// A registry whose number of CPUs is known when it is made, and which
/// allocates then and at no other time.
#[cfg(feature = "alloc")]
pub type HeapRegistry<const EVENTS: usize> = PerCpuRegistry<Vec<CpuList<EVENTS>>, EVENTS>;

impl<const CPUS: usize, const EVENTS: usize> FixedRegistry<CPUS, EVENTS> {
    /// A registry without events.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(policy: DeliveryPolicy) -> Self {
        Self::with_spare(policy, atomics![CpuList::new(); CPUS], CPUS)
    }
}

#[cfg(feature = "alloc")]
impl<const EVENTS: usize> HeapRegistry<EVENTS> {
    /// A registry for CPU numbers below `cpus`, with `spare` lists more for CPUs that have
    /// more than `EVENTS` events; without events.
    ///
    /// # Errors
    ///
    /// [`AddError::NoMemory`] if there is no memory for the lists.
    pub fn try_with_cpus(
        policy: DeliveryPolicy,
        cpus: usize,
        spare: usize,
    ) -> Result<Self, AddError> {
        let count = cpus.checked_add(spare).ok_or(AddError::NoMemory)?;
        let mut lists = Vec::new();
        lists.try_reserve_exact(count).map_err(|_| AddError::NoMemory)?;
        lists.resize_with(count, CpuList::new);
        Ok(Self::with_spare(policy, lists, cpus))
    }
}

impl<S, const EVENTS: usize> PerCpuRegistry<S, EVENTS> {
    const_unless_loom! {
        /// A registry without events on these lists, the first `cpus` of which are those
        /// of the CPUs and all others spare.
        #[must_use]
        pub fn with_spare(policy: DeliveryPolicy, lists: S, cpus: usize) -> Self {
            Self {
                policy,
                owners: Owners::new(),
                lists,
                cpus,
                taken: AtomicU32::new(0),
                any_cpu: CpuList::new(),
                stale_requests: Statistic::new(),
                other_task: Statistic::new(),
                unknown_cpu: Statistic::new(),
            }
        }
    }

    /// Who gets a stack.
    #[must_use]
    pub const fn policy(&self) -> DeliveryPolicy {
        self.policy
    }

    /// Whose descriptor an event of `leader` belongs to.
    fn owner(&self, leader: GroupLeader) -> GroupLeader {
        match self.policy {
            DeliveryPolicy::FirstLive => leader,
            DeliveryPolicy::Broadcast => GroupLeader(0),
        }
    }
}

impl<S: AsRef<[CpuList<EVENTS>]>, const EVENTS: usize> PerCpuRegistry<S, EVENTS> {
    /// Adds an event. The first one of its profiler registers a client. Task
    /// context.
    ///
    /// # Errors
    ///
    /// [`AddError`]; nothing has changed then.
    pub fn add<D: Deferral>(&self, core: &D, spec: EventSpec) -> Result<CpuEvent, AddError> {
        self.add_with(core, spec, Filter::task(spec.task))
    }

    /// Adds an event of a CPU about the tasks that are in `group`, a cgroup for example, and in
    /// the groups within it, as [`add`](Self::add) does.
    ///
    /// A stack goes to it if the task is in the group when it returns to user code, on the
    /// event's CPU: [`Subject::is_in`] says so then.
    ///
    /// # Errors
    ///
    /// [`AddError`]: [`AddError::NoCpu`] also under [`DeliveryPolicy::Broadcast`],
    /// [`AddError::TaskAndGroup`] if `spec` names a task.
    pub fn add_for_group<D: Deferral>(
        &self,
        core: &D,
        spec: EventSpec,
        group: GroupKey,
    ) -> Result<CpuEvent, AddError> {
        match spec.task {
            Some(_) => Err(AddError::TaskAndGroup),
            None => self.add_with(core, spec, Filter::Group(group)),
        }
    }

    fn add_with<D: Deferral>(
        &self,
        core: &D,
        spec: EventSpec,
        filter: Filter,
    ) -> Result<CpuEvent, AddError> {
        let cpu = self.cpu_of(spec)?;
        let chain = self.chain(cpu)?;
        let leader = self.owner(spec.leader);
        let owners = self.owners.lock(|| core.relax());
        // Whatever can fail comes first, so that there is nothing to undo.
        let (at, place) = self.free_place(&chain).ok_or(AddError::NoMemory)?;
        let generation = Generation::fresh().ok_or(AddError::Exhausted)?;
        let client = match owners.find(leader) {
            Some(client) => {
                if !chain.has_events_of(client) {
                    owners.occupy(client);
                }
                client
            }
            None => {
                // A profiler that is on its way out has its place still, though
                // its client is gone.
                let vacancy = owners.vacancy().ok_or(AddError::Busy)?;
                let client = core.register().map_err(|_| AddError::Busy)?;
                vacancy.fill(leader, client);
                client
            }
        };
        let EventSpec { key, defer_output, .. } = spec;
        chain.occupy(place, generation, Occupant { client, key, filter, defer_output });
        Ok(CpuEvent { generation, client, cpu, at })
    }

    /// Adds the copy of an event that a child has from its fork: on the same CPU, of the
    /// same profiler, whoever forks. Task context, before the child runs.
    ///
    /// It needs no client of its own, and a place on the CPU or in a spare list.
    ///
    /// # Errors
    ///
    /// [`AddError`], [`AddError::NoParent`] if `parent` has been removed; nothing has
    /// changed then.
    pub fn inherit<D: Deferral>(
        &self,
        core: &D,
        parent: CpuEvent,
        child: TaskKey,
        key: EventKey,
    ) -> Result<CpuEvent, AddError> {
        let CpuEvent { client, cpu, .. } = parent;
        let chain = self.chain(cpu)?;
        let of_parent = chain.place(parent.at).ok_or(AddError::NoParent)?;
        // With the lock the profiler keeps its client, and the CPU its count.
        let _owners = self.owners.lock(|| core.relax());
        let word = of_parent.word();
        if !word.is_live_as(parent.generation) {
            return Err(AddError::NoParent);
        }
        let (at, place) = self.free_place(&chain).ok_or(AddError::NoMemory)?;
        let generation = Generation::fresh().ok_or(AddError::Exhausted)?;
        let defer_output = word.defer_output();
        let filter = Filter::Task(child);
        chain.occupy(place, generation, Occupant { client, key, filter, defer_output });
        Ok(CpuEvent { generation, client, cpu, at })
    }

    /// The CPU of an event that is to be added; `None` for any.
    fn cpu_of(&self, spec: EventSpec) -> Result<Option<u32>, AddError> {
        match u32::try_from(spec.cpu) {
            Ok(cpu) => Ok(Some(cpu)),
            Err(_) if self.policy == DeliveryPolicy::Broadcast && spec.task.is_some() => Ok(None),
            Err(_) => Err(AddError::NoCpu),
        }
    }

    /// A free place, for which the chain may take a spare list. With the lock.
    fn free_place<'a>(&self, chain: &Chain<'a, EVENTS>) -> Option<(PlaceIndex, &'a Place)> {
        chain.free_place().or_else(|| {
            let taken = self.taken.load(Ordering::Relaxed);
            let index = self.cpus.checked_add(usize::try_from(taken).ok()?)?;
            chain.lists.get(index)?;
            self.taken.store(taken.checked_add(1)?, Ordering::Relaxed);
            chain.extend(index);
            chain.free_place()
        })
    }

    /// Removes an event. When this returns, no delivery to it runs, and since
    /// it was called none could start; its requests are refused. The last
    /// event of its profiler cancels the client. Task context.
    ///
    /// Waits, by [`Deferral::wait_while`], for deliveries to the event that run, and
    /// for those to the client if that is cancelled, until that hook gives up: one
    /// may never end, as where a delivery calls this without its task. `current` is the task that calls, if it is one that can deliver.
    /// `core` is the one that the event was added with.
    ///
    /// # Errors
    ///
    /// [`RemoveError`], which says what has changed. An event of another
    /// registry is [`Removed`](RemoveError::Removed), as far as this one is
    /// concerned.
    pub fn remove<D: Deferral>(
        &self,
        core: &D,
        current: Option<&D::Task>,
        event: CpuEvent,
    ) -> Result<(), RemoveError> {
        let CpuEvent { client, generation, .. } = event;
        let (chain, place) = self.find(event).ok_or(RemoveError::Removed)?;
        if !place.word().is_live_as(generation) {
            return Err(RemoveError::Removed);
        }
        if current.is_some_and(|task| core.is_delivering(task, client)) {
            return Err(RemoveError::OwnDelivery);
        }
        let last = {
            let owners = self.owners.lock(|| core.relax());
            if !place.unlink(generation) {
                return Err(RemoveError::Removed);
            }
            !chain.has_events_of(client) && owners.vacate(client)
        };
        let cancelled = if last { core.cancel(current, client) } else { Ok(()) };
        core.wait_while(|| place.is_running(generation));
        if last {
            self.owners.free(client);
        }
        if place.is_running(generation) {
            let client = cancelled.is_err().then_some(client);
            return Err(RemoveError::StillRunning { client });
        }
        cancelled.map_err(RemoveError::NotCancelled)
    }

    /// Whether a delivery to the event runs. For a caller whose removal
    /// returned [`StillRunning`](RemoveError::StillRunning): no delivery starts
    /// any more, and when this is false the event may be freed.
    #[must_use]
    pub fn is_running(&self, event: &CpuEvent) -> bool {
        self.find(*event).is_some_and(|(_, place)| place.is_running(event.generation))
    }

    /// Asks for the user stack of `task`, which is `subject` to the host, on behalf of an
    /// event's sample. Any context, NMI included: two loads and a request to the core.
    ///
    /// A second request of the client in the same kernel entry is no error.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; it is counted.
    #[inline]
    pub fn request<D: Deferral>(
        &self,
        core: &D,
        task: &D::Task,
        subject: impl Subject,
        event: &CpuEvent,
    ) -> Result<Cookie, RequestError> {
        let found = self.find(*event).map(|(_, place)| (place, place.word()));
        let Some((place, word)) = found.filter(|(_, word)| word.is_live_as(event.generation))
        else {
            self.count_stale(*event);
            return Err(RequestError::Removed);
        };
        if !place.is_about(word, subject) {
            self.other_task.count();
            return Err(RequestError::OtherTask);
        }
        match core.request(task, event.client) {
            RequestOutcome::Queued(cookie)
            | RequestOutcome::AlreadyPending(cookie)
            | RequestOutcome::AlreadyExecuted(cookie) => Ok(cookie),
            RequestOutcome::Refused(refusal) => Err(RequestError::Refused(refusal)),
        }
    }

    /// Hands out a stack that the core delivers to `client`: calls `output`
    /// with each event that gets it. Task context, on the CPU where the task
    /// returns, which may be another than the one that asked.
    ///
    /// `output` may sleep. If it fails, the record is lost; that is counted,
    /// and so is a stack for which there is no event on this CPU.
    pub fn deliver<E>(
        &self,
        client: ClientId,
        cpu: u32,
        subject: impl Subject,
        mut output: impl FnMut(EventKey) -> Result<(), E>,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        let Ok(chain) = self.chain(Some(cpu)) else {
            self.unknown_cpu.count();
            return delivered;
        };
        let list = chain.head;
        let mut write = |key: EventKey| match output(key) {
            Ok(()) => delivered.written = delivered.written.saturating_add(1),
            Err(_) => {
                delivered.failed = delivered.failed.saturating_add(1);
                list.output_failed.count();
            }
        };
        match self.policy {
            DeliveryPolicy::FirstLive => {
                if let Some(inside) = chain.enter_first(client, subject) {
                    write(inside.key);
                }
            }
            DeliveryPolicy::Broadcast => {
                chain.enter_each(client, subject, &mut write);
                self.any_cpu().enter_each(client, subject, &mut write);
            }
        }
        if delivered == Delivered::default() {
            list.no_event.count();
        }
        delivered
    }

    /// Whether deliveries to `client` are for this registry.
    #[must_use]
    pub fn owns(&self, client: ClientId) -> bool {
        self.owners.has(client)
    }

    /// The client of a profiler that has events.
    #[must_use]
    pub fn client_of(&self, leader: GroupLeader) -> Option<ClientId> {
        self.owners.find(self.owner(leader)).map(|(client, _)| client)
    }

    /// On how many CPUs a profiler has events; those without a CPU count as on one more.
    #[must_use]
    pub fn occupied_cpus(&self, leader: GroupLeader) -> u32 {
        self.owners.find(self.owner(leader)).map_or(0, |(_, cpus)| cpus)
    }

    /// What was lost so far.
    #[must_use]
    pub fn counters(&self) -> RegistryCounters {
        let sum = |of: fn(&CpuList<EVENTS>) -> &Statistic| {
            let each = self.lists.as_ref().iter().map(|list| of(list).get());
            each.fold(0, u64::wrapping_add)
        };
        RegistryCounters {
            no_event: sum(|list| &list.no_event),
            output_failed: sum(|list| &list.output_failed),
            other_task: self.other_task.get(),
            unknown_cpu: self.unknown_cpu.get(),
            stale_requests: sum(|list| &list.stale_requests)
                .wrapping_add(self.stale_requests.get()),
        }
    }

    /// Counts a request for an event that is not here, at the CPU that makes
    /// it: many that refuse at once share no cache line.
    #[cold]
    fn count_stale(&self, event: CpuEvent) {
        let of_cpu = self.chain(event.cpu).map(|chain| &chain.head.stale_requests);
        of_cpu.unwrap_or(&self.stale_requests).count();
    }

    /// The events of a CPU, or those without one.
    fn chain(&self, cpu: Option<u32>) -> Result<Chain<'_, EVENTS>, AddError> {
        let Some(cpu) = cpu else { return Ok(self.any_cpu()) };
        let lists = self.lists.as_ref();
        let index = usize::try_from(cpu).ok().filter(|&index| index < self.cpus);
        let head = index.and_then(|index| lists.get(index));
        Ok(Chain { head: head.ok_or(AddError::CpuOutOfRange { cpu })?, lists })
    }

    fn any_cpu(&self) -> Chain<'_, EVENTS> {
        Chain { head: &self.any_cpu, lists: self.lists.as_ref() }
    }

    fn find(&self, event: CpuEvent) -> Option<(Chain<'_, EVENTS>, &Place)> {
        let chain = self.chain(event.cpu).ok()?;
        let place = chain.place(event.at)?;
        Some((chain, place))
    }
}

impl<S, const EVENTS: usize> fmt::Debug for PerCpuRegistry<S, EVENTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuRegistry")
            .field("policy", &self.policy)
            .field("owners", &self.owners)
            .finish_non_exhaustive()
    }
}

/// What became of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// How many events wrote it.
    pub written: u32,
    /// How many events could not write it.
    pub failed: u32,
}

/// What a registry has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistryCounters {
    /// Stacks for which there was no event on the CPU where the task returned.
    pub no_event: u64,
    /// Records that an event could not write.
    pub output_failed: u64,
    /// Requests of an event for a task that it is not about: a fault of the host.
    pub other_task: u64,
    /// Stacks delivered on a CPU that the registry does not know: a fault of
    /// the host.
    pub unknown_cpu: u64,
    /// Requests for events that were removed, or are another registry's.
    pub stale_requests: u64,
}
