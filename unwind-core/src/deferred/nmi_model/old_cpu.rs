//! A CPU on which an NMI must not make an exchange.

use test_support::interrupt::count_exchanges;

use super::*;

struct OldCpu(ModelHost);

impl Host for OldCpu {
    type Task = ModelTask;
    const NMI_SAFE_COMPARE_EXCHANGE: bool = false;

    fn state<'t>(&self, task: &'t ModelTask) -> &'t TaskState {
        self.0.state(task)
    }

    fn task_kind(&self, task: &ModelTask) -> TaskKind {
        self.0.task_kind(task)
    }

    fn in_nmi(&self) -> bool {
        self.0.in_nmi()
    }

    fn cpu(&self) -> u32 {
        self.0.cpu()
    }

    fn schedule(&self, task: &ModelTask, context: RequestContext) -> Result<(), ScheduleError> {
        self.0.schedule(task, context)
    }

    fn clock(&self) -> u64 {
        self.0.clock()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

#[test]
fn b8_whatever_an_nmi_asks_for_there_it_makes_no_exchange_also_not_to_count_it() {
    let unwind = DeferredUnwind::new(OldCpu(ModelHost::new()), SerialCookies::new());
    let [client, cancelled] = [(); 2].map(|()| unwind.register().unwrap());
    unwind.cancel(None, cancelled).unwrap();
    let tasks: [ModelTask; 3] = core::array::from_fn(|_| ModelTask::new(1));
    tasks[1].kind.set(TaskKind::KernelThread);
    unwind.close(&tasks[2]);
    let refused = RequestOutcome::Refused(Refusal::NmiUnsafe);
    unwind.host().0.in_nmi.set(true);
    for task in &tasks {
        let exchanges = count_exchanges(|| {
            for id in [client, cancelled, ClientId::NONE] {
                assert_eq!(unwind.request(task, id), refused);
            }
            assert_eq!(unwind.cookie(task), Err(Refusal::NmiUnsafe));
        });
        assert_eq!(exchanges, 0);
    }
    unwind.host().0.in_nmi.set(false);
    assert_eq!(unwind.drops().nmi_unsafe, 12);
    // A repeated request needs none, and elsewhere they are made.
    let task = ModelTask::new(1);
    let first = || assert!(unwind.request(&task, client).is_pending());
    assert!(count_exchanges(first) > 0);
    unwind.host().0.in_nmi.set(true);
    assert_eq!(count_exchanges(first), 0);
}
