//! Any sequence of adds, removals, requests and deliveries: each profiler has a
//! client as long as it has events, and a stack goes to the events that it is
//! for.

use std::{cell::RefCell, collections::BTreeMap};

use unwind_core::deferred::{CancelError, ClientId, Cookie, RequestOutcome, TooManyClients};
use unwind_perf::per_cpu::{
    AddError, CpuEvent, CpuList, Deferral, DeliveryPolicy, EventKey, EventSpec, FixedRegistry,
    GroupLeader, RemoveError, RequestError, TaskKey,
};

use crate::input::Input;

const CPUS: usize = 3;
const EVENTS: usize = 4;
/// Lists for CPUs that have more events than that.
const SPARE: usize = 2;
const CLIENTS: usize = 3;

/// A core with room for few clients.
#[derive(Default)]
struct Core {
    clients: RefCell<Vec<ClientId>>,
    given: RefCell<u64>,
}

impl Deferral for Core {
    type Task = ();

    fn register(&self) -> Result<ClientId, TooManyClients> {
        let mut clients = self.clients.borrow_mut();
        if clients.len() == CLIENTS {
            return Err(TooManyClients);
        }
        let mut given = self.given.borrow_mut();
        *given += 1;
        let client = ClientId::from_bits(*given << 6 | 1 << 5 | (*given % 32));
        clients.push(client);
        Ok(client)
    }

    fn cancel(&self, _: Option<&()>, client: ClientId) -> Result<(), CancelError> {
        let mut clients = self.clients.borrow_mut();
        let before = clients.len();
        clients.retain(|&other| other != client);
        assert_eq!(clients.len() + 1, before, "a client is cancelled once");
        Ok(())
    }

    fn is_delivering(&self, (): &(), _: ClientId) -> bool {
        false
    }

    fn request(&self, (): &(), client: ClientId) -> RequestOutcome {
        assert!(self.clients.borrow().contains(&client), "only clients that are registered ask");
        RequestOutcome::Queued(Cookie::new(7).unwrap())
    }

    fn relax(&self) {
        panic!("nothing runs that could be waited for");
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        assert!(!is_running(), "nothing runs that could be waited for");
    }
}

/// An event that was added.
#[derive(Clone, Copy)]
struct Known {
    event: CpuEvent,
    spec: EventSpec,
    live: bool,
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let policy = if input.bool() { DeliveryPolicy::FirstLive } else { DeliveryPolicy::Broadcast };
    let lists = core::array::from_fn(|_| CpuList::new());
    let (core, registry) = (Core::default(), Registry::with_spare(policy, lists, CPUS));
    let mut events: Vec<Known> = Vec::new();
    let mut next = 0;
    while !input.is_empty() {
        let step = input.u8();
        match step % 4 {
            0 if step & 0x80 != 0 && !events.is_empty() => {
                next += 1;
                let at = input.below(events.len().min(256));
                inherit(&core, &registry, &mut events, at, EventKey(next));
            }
            0 | 1 => {
                next += 1;
                let spec = EventSpec {
                    leader: GroupLeader(1 + u64::from(input.u8() % 5)),
                    cpu: i32::from(input.u8() % 5) - 1,
                    task: (step & 0x10 != 0).then_some(TaskKey(u64::from(step >> 6))),
                    key: EventKey(next),
                    defer_output: step & 0x20 != 0,
                };
                add(&core, &registry, &mut events, spec);
            }
            2 if !events.is_empty() => {
                let at = input.below(events.len().min(256));
                let known = &mut events[at];
                let expected = if known.live { Ok(()) } else { Err(RemoveError::Removed) };
                assert_eq!(registry.remove(&core, None, known.event), expected);
                known.live = false;
            }
            3 if step & 0x40 != 0 && !events.is_empty() => {
                let known = &events[input.below(events.len().min(256))];
                let task = TaskKey(u64::from(input.u8() % 4));
                let asked = registry.request(&core, &(), task, &known.event);
                let expected = match known.spec.task {
                    _ if !known.live => Err(RequestError::Removed),
                    Some(of) if of != task => Err(RequestError::OtherTask),
                    _ => Ok(Cookie::new(7).unwrap()),
                };
                assert_eq!(asked, expected);
            }
            _ => deliver(&registry, policy, &events, &mut input),
        }
        check(&core, &registry, policy, &events);
    }
}

type Registry = FixedRegistry<{ CPUS + SPARE }, EVENTS>;

/// Whose client an event has.
fn owner(policy: DeliveryPolicy, spec: &EventSpec) -> u64 {
    if policy == DeliveryPolicy::FirstLive { spec.leader.0 } else { 0 }
}

fn add(core: &Core, registry: &Registry, events: &mut Vec<Known>, spec: EventSpec) {
    let policy = registry.policy();
    let live = || events.iter().filter(|known| known.live);
    let has_client = live().any(|known| owner(policy, &known.spec) == owner(policy, &spec));
    let on_cpu = live().filter(|known| on_cpu(known) == on_cpu_of(&spec)).count();
    let clients = core.clients.borrow().len();
    match registry.add(core, spec) {
        Ok(event) => {
            let is_any = policy == DeliveryPolicy::Broadcast && spec.cpu < 0 && spec.task.is_some();
            assert!(is_any || (0..CPUS as i32).contains(&spec.cpu));
            assert!(on_cpu < EVENTS * (1 + SPARE));
            assert!(has_client || clients < CLIENTS);
            assert_eq!(event.cpu(), u32::try_from(spec.cpu).ok());
            events.push(Known { event, spec, live: true });
        }
        Err(AddError::NoCpu) => assert!(spec.cpu < 0),
        Err(AddError::CpuOutOfRange { cpu }) => assert!(cpu as usize >= CPUS),
        // A list that was taken stays with its CPU.
        Err(AddError::NoMemory) => assert!(on_cpu >= EVENTS),
        Err(AddError::Busy) => assert!(!has_client && clients == CLIENTS),
        Err(error) => panic!("{error}"),
    }
}

fn on_cpu_of(spec: &EventSpec) -> Option<u32> {
    u32::try_from(spec.cpu).ok()
}

fn on_cpu(known: &Known) -> Option<u32> {
    known.event.cpu()
}

/// The copy of an event that a child has: one more event of the same client.
fn inherit(core: &Core, registry: &Registry, events: &mut Vec<Known>, at: usize, key: EventKey) {
    let Known { event: parent, spec, live } = events[at];
    let child = TaskKey(key.0 % 4);
    match registry.inherit(core, parent, child, key) {
        Ok(event) => {
            assert!(live && event.client() == parent.client() && event.cpu() == parent.cpu());
            let spec = EventSpec { task: Some(child), key, ..spec };
            events.push(Known { event, spec, live: true });
        }
        Err(AddError::NoParent) => assert!(!live),
        Err(AddError::NoMemory) => {
            let same_cpu = |known: &&Known| known.live && known.event.cpu() == parent.cpu();
            assert!(live && events.iter().filter(same_cpu).count() >= EVENTS);
        }
        Err(error) => panic!("{error}"),
    }
}

fn deliver(registry: &Registry, policy: DeliveryPolicy, events: &[Known], input: &mut Input<'_>) {
    let Some(first) = events.get(input.below(events.len().clamp(1, 256))) else { return };
    let (client, cpu) = (first.event.client(), u32::from(input.u8() % 4));
    let task = TaskKey(u64::from(input.u8() % 4));
    let fails = input.bool();
    let live: Vec<&Known> = events
        .iter()
        .filter(|known| known.live && known.event.client() == client)
        .filter(|known| known.event.cpu().is_none_or(|of| of == cpu) && (cpu as usize) < CPUS)
        .filter(|known| known.spec.task.is_none_or(|of| of == task))
        .collect();
    let mut got = Vec::new();
    let delivered = registry.deliver(client, cpu, task, |key| {
        got.push(key);
        if fails { Err(()) } else { Ok(()) }
    });
    let count = got.len() as u32;
    let (written, failed) = if fails { (0, count) } else { (count, 0) };
    assert_eq!((delivered.written, delivered.failed), (written, failed));
    match policy {
        DeliveryPolicy::FirstLive => {
            // The keys ascend.
            assert!(got.iter().copied().eq(live.first().map(|known| known.spec.key)));
        }
        DeliveryPolicy::Broadcast => {
            got.sort_unstable_by_key(|key| key.0);
            let expected =
                live.iter().filter(|known| known.spec.defer_output).map(|known| known.spec.key);
            assert!(got.iter().copied().eq(expected));
        }
    }
}

fn check(core: &Core, registry: &Registry, policy: DeliveryPolicy, events: &[Known]) {
    let mut owners = BTreeMap::<u64, (ClientId, Vec<Option<u32>>)>::new();
    for known in events.iter().filter(|known| known.live) {
        let client = known.event.client();
        let entry = owners.entry(owner(policy, &known.spec)).or_insert((client, Vec::new()));
        assert_eq!(entry.0, client, "one profiler, one client");
        entry.1.push(known.event.cpu());
    }
    assert_eq!(core.clients.borrow().len(), owners.len());
    for leader in 0..6 {
        let expected =
            owners.get_mut(&if policy == DeliveryPolicy::FirstLive { leader } else { 0 });
        let expected = expected.map(|(client, cpus)| {
            cpus.sort_unstable();
            cpus.dedup();
            (*client, cpus.len() as u32)
        });
        assert_eq!(registry.client_of(GroupLeader(leader)), expected.map(|(client, _)| client));
        let cpus = expected.map_or(0, |(_, cpus)| cpus);
        assert_eq!(registry.occupied_cpus(GroupLeader(leader)), cpus);
    }
}
