//! Sequences for each change of a state.

use crate::event::{CODE, Code, EXECVE, Event, IO_WORKER, KERNEL_THREAD, Within};
use Event::{
    Absent, Call, Exit, Full, Kernel, Memory, Number, Old, Refuse, Registers, Return, Run, User,
    Wait,
};

const SHORT: Code = Code { pc: CODE + 0x10, depth: 4 };
const OTHER: Code = Code { pc: CODE + 0x20, depth: 5 };
const DEEP: Code = Code { pc: CODE + 0x30, depth: 300 };
const ENDLESS: Code = Code { pc: CODE + 0x40, depth: 3000 };
const WITHOUT_TABLE: Code = Code { pc: 0x70_0000, depth: 3 };
const PROGRAM: u64 = CODE + 0x50;

const READ: Event = Call { code: SHORT, number: 0 };
const EXEC: Event = Call { code: OTHER, number: EXECVE };
const BACK: Event = Event::RETURN;
const END: Event = Event::EXIT;

const fn task(slot: usize, number: u32, started: u64) -> Event {
    Event::Task { slot, number, started, leader: slot, flags: 0 }
}

const fn thread(slot: usize, number: u32, leader: usize) -> Event {
    Event::Task { slot, number, started: 5, leader, flags: 0 }
}

/// A thread that has asked executes another program, and another task gets its number.
fn number_used_anew(then: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let threads = [thread(1, 11, 0), Run(1), EXEC, Kernel, Run(0), END];
    let executed = [Run(1), Number(10), Memory { is_same: false }, task(2, 11, 9)];
    threads.into_iter().chain(executed).chain(then).collect()
}

/// All with a task in slot 0 that runs.
pub fn cases() -> Vec<Vec<Event>> {
    let back = |busy, late| Return { within: None, busy, late };
    let [same, other] = [true, false].map(|is_same| Memory { is_same });
    let with_flags = |flags| Event::Task { slot: 0, number: 10, started: 1, leader: 0, flags };
    let in_exit = Exit { within: Some(Within { point: 1, events: vec![Kernel] }) };
    let cases: [Vec<Event>; 40] = [
        vec![User(SHORT), BACK],
        vec![User(SHORT), Kernel, Kernel, BACK],
        vec![User(SHORT), BACK, User(OTHER), Kernel, BACK, User(DEEP), BACK, User(SHORT), BACK],
        vec![User(SHORT), BACK, Absent(true), User(OTHER), Kernel, BACK],
        vec![READ, BACK, READ, Kernel, Kernel, BACK, READ, Kernel, BACK],
        vec![READ, Kernel, back(3, 0), READ, Kernel, back(1, 0)],
        vec![READ, Kernel, back(0, 2), READ, Kernel, back(2, 2), READ, BACK],
        vec![User(WITHOUT_TABLE), Kernel, back(2, 1)],
        vec![User(ENDLESS), BACK, User(ENDLESS), Kernel, BACK],
        vec![Refuse(1), READ, Kernel, Kernel, Kernel, BACK],
        vec![Refuse(2), READ, Kernel, Kernel, back(1, 1), READ, Kernel, BACK],
        vec![READ, Kernel, Kernel, BACK, Refuse(1), READ, Kernel, BACK, READ, Kernel, back(2, 0)],
        vec![Refuse(1), READ, Kernel, END],
        vec![EXEC, Kernel, BACK],
        vec![EXEC, Kernel, other.clone(), Kernel, Registers(PROGRAM), Kernel, back(1, 1)],
        vec![EXEC, Kernel, same.clone(), Kernel, Registers(PROGRAM), Kernel, back(1, 1)],
        vec![EXEC, other.clone(), Kernel, Registers(PROGRAM), Kernel, BACK],
        vec![EXEC, same.clone(), Kernel, Registers(PROGRAM), Kernel, BACK],
        vec![EXEC, other.clone(), Registers(PROGRAM), Kernel, BACK, User(SHORT), BACK],
        vec![EXEC, same, Registers(PROGRAM), Kernel, BACK, User(SHORT), BACK],
        vec![EXEC, Kernel, other, Kernel, END],
        vec![READ, Kernel, END, task(0, 10, 2), READ, Kernel, Kernel, BACK],
        vec![READ, Kernel, BACK, END, task(0, 10, 2), READ, Kernel, END],
        vec![READ, Kernel, in_exit.clone()],
        vec![READ, in_exit],
        vec![READ, Kernel, Registers(PROGRAM), Kernel, back(2, 1)],
        vec![Full { samples: true, stacks: false }, READ, Kernel, Kernel, BACK, User(SHORT), BACK],
        vec![Full { samples: false, stacks: true }, READ, Kernel, BACK, User(WITHOUT_TABLE), BACK],
        vec![Full { samples: true, stacks: true }, READ, Kernel, END],
        vec![
            READ,
            Kernel,
            task(1, 11, 3),
            Run(1),
            READ,
            Kernel,
            Run(0),
            Kernel,
            BACK,
            Run(1),
            BACK,
        ],
        vec![
            thread(1, 11, 0),
            Run(1),
            User(SHORT),
            Run(0),
            READ,
            Kernel,
            END,
            Run(1),
            Kernel,
            BACK,
        ],
        vec![with_flags(KERNEL_THREAD), Kernel, Kernel],
        vec![with_flags(IO_WORKER), Kernel, END],
        vec![Old, User(SHORT), Kernel, BACK, User(DEEP), BACK, User(WITHOUT_TABLE), END],
        number_used_anew([Kernel, Registers(PROGRAM), BACK]),
        number_used_anew([Kernel, END]),
        number_taken_over(),
        vec![
            READ,
            Wait,
            BACK,
            READ,
            Wait,
            Kernel,
            Wait,
            back(1, 1),
            Absent(true),
            READ,
            Wait,
            BACK,
        ],
        number_used_anew([
            Run(2),
            User(SHORT),
            Kernel,
            BACK,
            Run(1),
            Registers(PROGRAM),
            BACK,
            Run(2),
            READ,
            Kernel,
            BACK,
        ]),
        number_used_anew([Run(2), READ, Kernel, END, Run(1), Kernel, Registers(PROGRAM), BACK]),
    ];
    let begun = |case: Vec<Event>| [task(0, 10, 1), Run(0)].into_iter().chain(case).collect();
    cases.into_iter().map(begun).collect()
}

/// What may come at any point: a sample, and one of another task, whose stack is walked as well.
pub fn interruptions() -> [Vec<Event>; 2] {
    let elsewhere = [Event::Cpu(1), task(7, 77, 7), Run(7), User(DEEP), Kernel, back_late()];
    [vec![Kernel], [Kernel].into_iter().chain(elsewhere).collect()]
}

/// A thread whose number another task has asked with by the time when the new program is there.
fn number_taken_over() -> Vec<Event> {
    let thread = [thread(1, 11, 0), Run(1), READ, Kernel, BACK, EXEC, Run(0), END];
    let executed = [Run(1), Number(10), Memory { is_same: false }];
    let other = [task(2, 11, 9), Run(2), READ, Kernel, Run(1), Registers(PROGRAM), BACK];
    let then = [Run(2), Kernel, BACK];
    thread.into_iter().chain(executed).chain(other).chain(then).collect()
}

const fn back_late() -> Event {
    Return { within: None, busy: 1, late: 1 }
}

/// A sequence with `events` at a point of its n-th return or exit; `None` if it has no such.
pub fn interrupted(case: &[Event], n: usize, point: u32, events: &[Event]) -> Option<Vec<Event>> {
    let mut case = case.to_vec();
    let ends = case.iter_mut().filter_map(|event| match event {
        Return { within, .. } | Exit { within } => Some(within),
        _ => None,
    });
    *ends.into_iter().nth(n)? = Some(Within { point, events: events.to_vec() });
    Some(case)
}
