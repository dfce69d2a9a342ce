//! Any sequence of attaches, detaches, forks, exits and switches, with memory
//! that runs out: each task has its data as long as an event needs it, nothing
//! is freed under a reader, twice or never.

use std::sync::Arc;

use unwind_perf::task_data::{AttachError, DataLayout, SwitchHook, TaskDataUsers};

use crate::{
    arena::{Host, Task},
    input::Input,
};

/// What the model knows of a task.
struct Known {
    task: Arc<Task>,
    attachments: Vec<unwind_perf::task_data::TaskAttachment>,
    /// A fork that got no memory left it without the mark.
    unmarked: bool,
    exited: bool,
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let host = Host::with_tasks(2);
    let users = TaskDataUsers::new(DataLayout::new(100, 16));
    let known = |task| Known { task, attachments: Vec::new(), unmarked: false, exited: false };
    let mut tasks: Vec<Known> = host.tasks().into_iter().map(known).collect();
    let (mut all, mut sections, mut missed) = (Vec::new(), Vec::new(), 0);
    let hook = SwitchHook::new();
    let mut next = 2;
    while !input.is_empty() {
        let step = input.u8();
        let at = input.below(tasks.len());
        match step % 10 {
            0 | 1 => attach(&host, &users, &mut tasks[at]),
            2 | 3 => {
                if let Some(attachment) = tasks[at].attachments.pop() {
                    users.detach_task(&host, &tasks[at].task, attachment).unwrap();
                }
            }
            4 => match users.attach_all(&host) {
                Ok(attachment) => {
                    if all.is_empty() {
                        tasks.iter_mut().for_each(|known| known.unmarked = false);
                    }
                    all.push(attachment);
                }
                Err(error) => assert_eq!(error, AttachError::NoMemory),
            },
            5 => {
                if let Some(attachment) = all.pop() {
                    users.detach_all(&host, attachment).unwrap();
                }
            }
            6 if tasks.len() < 8 => {
                let task = host.spawn(next);
                next += 1;
                let forked = users.fork(&host, &task);
                missed += u64::from(forked.is_err());
                tasks.push(Known { unmarked: forked.is_err(), ..known(task) });
            }
            7 => {
                users.exit(&host, &tasks[at].task);
                tasks[at].exited = true;
            }
            8 => match input.u8() % 4 {
                0 => host.fail_after(u64::from(step >> 4)),
                1 => host.fail_no_more(),
                2 => sections.push(host.open_section()),
                _ => sections.pop().into_iter().for_each(|section| host.close_section(section)),
            },
            _ => {
                let section = host.open_section();
                let other = &tasks[input.below(tasks.len())].task;
                if let Some(switch) = hook.switch(Some(&tasks[at].task.data), Some(&other.data)) {
                    for handle in [switch.from, switch.to].into_iter().flatten() {
                        host.access(handle);
                    }
                }
                host.close_section(section);
            }
        }
        check(&users, &tasks, all.len());
    }
    host.fail_no_more();
    sections.into_iter().for_each(|section| host.close_section(section));
    for known in &mut tasks {
        for attachment in known.attachments.drain(..) {
            users.detach_task(&host, &known.task, attachment).unwrap();
        }
    }
    all.into_iter().for_each(|attachment| users.detach_all(&host, attachment).unwrap());
    let counters = users.counters();
    assert_eq!((host.live(), counters.missed_forks), (0, missed));
    assert_eq!((counters.allocated, counters.freed), (host.allocations(), host.allocations()));
}

fn attach(host: &Host, users: &TaskDataUsers, known: &mut Known) {
    match users.attach_task(host, &known.task) {
        Ok(attachment) => {
            assert!(!known.exited);
            known.attachments.push(attachment);
        }
        Err(AttachError::Exiting) => assert!(known.exited),
        Err(error) => assert_eq!(error, AttachError::NoMemory),
    }
}

fn check(users: &TaskDataUsers, tasks: &[Known], system_wide: usize) {
    assert_eq!(users.system_wide() as usize, system_wide);
    for known in tasks {
        let marked = system_wide != 0 && !known.unmarked && !known.exited;
        let own = if known.exited { 0 } else { known.attachments.len() as u32 };
        let data = &known.task.data;
        assert_eq!(data.is_exited(), known.exited);
        assert_eq!((data.is_marked(), data.users()), (marked, own + u32::from(marked)));
        assert_eq!(data.handle().is_some(), data.users() != 0);
    }
}
