//! Tasks: what they are, how they take turns, and what they can ask for.

mod life;
mod program;
mod schedule;
pub(crate) mod signal;
mod state;
mod system_call;

pub(crate) use life::{
    end, end_all, is_ending, kill_current, spawn_kernel_thread, spawn_program, user_tasks,
};
pub(crate) use program::{Program, stack_end};
pub(crate) use schedule::{
    arrived, current, evict_next, interrupted, next_task, sleep, start, switch, switch_is_due,
    tick, ticks,
};
pub(crate) use state::{Kind, TRACE_LEN, Task, kernel_stack_of, most_stack_used, paint_stacks};
pub(crate) use system_call::{is_traced, system_call};
