//! Faults in the program, each of which has to be seen.

use core::ops::Range;

use crate::program::{Program, Replacement};
use crate::{agree, cases, interrupted, random};

struct Fault {
    name: &'static str,
    replacements: &'static [Replacement],
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "the state stays after an exit",
        replacements: &[("	bpf_map_delete_elem(&tasks, &tid);\n", "")],
    },
    Fault {
        name: "an exit abandons nothing",
        replacements: &[("		abandon(cookie, asked, end);\n", "		;\n")],
    },
    Fault {
        name: "an exit abandons what is delivered",
        replacements: &[(
            "if (__sync_val_compare_and_swap(&state->state, PENDING, IDLE) == PENDING)",
            "",
        )],
    },
    Fault {
        name: "an exit ends another task's request",
        replacements: &[("	if (state && state->started == task->start_time)", "	if (state)")],
    },
    Fault {
        name: "a number given up is forgotten whoever has it",
        replacements: &[(" && state->task == (u64)task)", ")")],
    },
    Fault {
        name: "what was requested with a number given up is never abandoned",
        replacements: &[(
            "		forget(before, state, END_EXEC);\n",
            "		bpf_map_delete_elem(&tasks, &before);\n",
        )],
    },
    Fault {
        name: "a number used anew has the request from before",
        replacements: &[("	if (state->started == task->start_time)\n", "	if (1)\n")],
    },
    Fault {
        name: "a number used anew takes a request that is pending",
        replacements: &[("	if (state->state != IDLE)\n		return 1;\n", "	state->state = IDLE;\n")],
    },
    Fault {
        name: "a work that is not released is a refusal",
        replacements: &[("	if (error == -EBUSY && before) {", "	if (0) {")],
    },
    Fault {
        name: "a sample of an entry that is delivered has a cookie of its own",
        replacements: &[("		return before;\n", "		return cookie;\n")],
    },
    Fault {
        name: "the cookie of a refused request stays",
        replacements: &[("	state->cookie = before;\n", "")],
    },
    Fault {
        name: "a refused request is pending",
        replacements: &[(
            "	state->state = IDLE;\n	state->cookie = before;",
            "	state->cookie = before;",
        )],
    },
    Fault {
        name: "what was walked at once is pending",
        replacements: &[("		state->state = IDLE;\n		return cookie;", "		return cookie;")],
    },
    Fault {
        name: "what was walked at once is requested, too",
        replacements: &[("		state->state = IDLE;\n		return cookie;", "")],
    },
    Fault {
        name: "samples in the kernel are walked at once",
        replacements: &[("	if (is_at_once && !stops && walk_now", "	if (walk_now")],
    },
    Fault {
        name: "a request that is pending is not seen",
        replacements: &[(
            "if (__sync_val_compare_and_swap(&state->state, IDLE, PENDING) != IDLE) {",
            "state->state = PENDING;\n	if (0) {",
        )],
    },
    Fault {
        name: "entries share a cookie",
        replacements: &[("	__sync_lock_test_and_set(&state->state, IDLE);\n", "")],
    },
    Fault {
        name: "entries have the same number",
        replacements: &[("++cpu->serial", "cpu->serial")],
    },
    Fault {
        name: "a stack comes twice",
        replacements: &[(
            "		put_stack(&room->stack.head, room->stack.head.count, MAX_FRAMES, end);\n",
            "		{ put_stack(&room->stack.head, room->stack.head.count, MAX_FRAMES, end);\n		put_stack(&room->stack.head, room->stack.head.count, MAX_FRAMES, end); }\n",
        )],
    },
    Fault {
        name: "a copy comes beside the stack",
        replacements: &[(
            "	if (is_for_outside(end) || room->calls.is_unproven) {\n",
            "	if (1) {\n",
        )],
    },
    Fault {
        name: "a stack is of the registers that a task has when it returns",
        replacements: &[(
            "begin(w, &room->kept, state->registers, task->tgid);",
            "begin(w, &room->kept, (void *)bpf_task_pt_regs(task), task->tgid);",
        )],
    },
    Fault {
        name: "an exec is not seen",
        replacements: &[("	if (has_executed(task, state)) {", "	if (0) {")],
    },
    Fault {
        name: "an exec is seen by its memory alone",
        replacements: &[("	if (!is_execve(state->registers))\n", "	if (1)\n")],
    },
    Fault {
        name: "an exec is seen by its registers alone",
        replacements: &[("	if ((u64)task->mm != state->mm)\n		return 1;\n", "")],
    },
    Fault {
        name: "an exit is an exec",
        replacements: &[("task->mm ? END_EXEC : END_EXIT", "END_EXEC")],
    },
    Fault { name: "a task that ends requests", replacements: &[(" | PF_EXITING", "")] },
    Fault {
        name: "a room stays taken",
        replacements: &[("	__sync_lock_test_and_set(&room->is_taken, 0);\n", "")],
    },
    Fault {
        name: "two walks have the same room",
        replacements: &[(
            "if (room && __sync_val_compare_and_swap(&room->is_taken, 0, 1) == 0) {",
            "if (room) {",
        )],
    },
    Fault {
        name: "a sample that comes while a room is looked for has no cookie",
        replacements: &[(
            "	room = take_room();\n",
            "	u64 cookie = state->cookie;\n	state->cookie = 0;\n	room = take_room();\n	state->cookie = cookie;\n",
        )],
    },
];

/// Whether some sequence shows a fault.
fn is_seen(program: &Program) -> bool {
    let random = |seeds: Range<u64>| seeds.map(|seed| random::sequence(seed, 60)).collect();
    let all = [cases::cases(), random(0..50), random(50..300)].into_iter().chain(interrupted());
    all.into_iter().any(|sequences| agree(program, &sequences).is_err())
}

#[test]
fn each_planted_fault_is_seen() {
    let Some(compiler) = Program::compiler() else { return };
    let is_unseen = |fault: &&Fault| {
        let name = fault.name.replace(' ', "-");
        !is_seen(&Program::compile(&compiler, &name, fault.replacements))
    };
    let unseen: Vec<_> = FAULTS.iter().filter(is_unseen).map(|fault| fault.name).collect();
    assert_eq!(unseen, [""; 0]);
    println!("{} faults", FAULTS.len());
}
