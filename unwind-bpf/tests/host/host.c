// SPDX-License-Identifier: MIT OR GPL-2.0
//
// A machine for the program: tasks, memory, maps, helpers and task work. It reads events and prints what
// the program writes. `sequences/event.rs` has the events.
#define on_exit on_end // which the C library has, too
#include "walk.bpf.c"
#undef on_exit

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 8
#define CPUS 2
#define STACK 0x7000000ull
#define CODE 0x400000ull
#define ENOENT 2
#define ENOMEM 12

int can_defer = 1;

// Tasks.
struct simulated {
	struct task_struct task;
	u64 registers[REGISTERS];
	struct mm_struct *mm;
	u32 depth; // of its stack
	u32 former; // its number before it executes
	u32 is_between; // its memory is another program's, its registers are not yet
	struct work *works; // the last one first
};
static struct simulated slots[SLOTS];
static struct simulated *current;
static u32 cpu;
static u64 clock_ns;
static u32 is_waiting, refusals, is_absent, is_brought_in, is_full_of_samples, is_full_of_stacks;

static struct mm_struct *new_memory(void)
{
	struct mm_struct *mm = calloc(1, 64);

	mm->context.vdso = (void *)STACK;
	return mm;
}

// Interrupts: the rest of the lines to `end` comes at the countdown's zero.
static u32 countdown, is_in_sample;
static char nested[4096];
static void act(char *line);

static void run_nested(void)
{
	char lines[sizeof(nested)], *rest, *line;
	struct simulated *interrupted = current;
	u32 on = cpu;

	if (countdown)
		printf("late\n");
	countdown = 0;
	strcpy(lines, nested);
	nested[0] = 0;
	for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(0, "\n", &rest))
		act(line);
	current = interrupted;
	cpu = on;
}

void interrupt(void)
{
	if (countdown && !is_in_sample && !--countdown)
		run_nested();
}

// Task work.
enum { STANDBY, SCHEDULED, RUNNING, FREED };
struct work {
	u32 state;
	struct work *next;
	void *key, *value;
	bpf_task_work_callback_t callback;
};

static int schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map,
			   bpf_task_work_callback_t callback)
{
	struct work *it = (struct work *)work->opaque;

	if (it && it->state != STANDBY)
		return -EBUSY;
	if (refusals && refusals--)
		return -ENOMEM;
	if (!it)
		it = calloc(1, sizeof(*it));
	work->opaque = (u64)it;
	it->value = (char *)work - __builtin_offsetof(struct task_state, work);
	it->key = (u32 *)it->value - 2;
	it->callback = callback;
	it->state = SCHEDULED;
	it->next = current->works;
	current->works = it;
	return 0;
}

int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map,
				       bpf_task_work_callback_t callback, void *aux)
{
	return schedule_resume(task, work, map, callback);
}

int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map,
				  bpf_task_work_callback_t callback)
{
	return schedule_resume(task, work, map, callback);
}

static void take_sample(int is_user)
{
	struct bpf_perf_event_data context = { .sample_period = 1 };

	memcpy(context.regs, current->registers, sizeof(context.regs));
	if (!is_user)
		context.regs[CS] = 0x10;
	is_in_sample = 1;
	sample(&context);
	is_in_sample = 0;
}

// Runs what is scheduled. A work is busy until it is released.
static void run_works(u32 busy, u32 late)
{
	struct work *it;

	for (;;) {
		it = current->works;
		if (!it && !countdown)
			break;
		if (!it) {
			run_nested();
			continue;
		}
		current->works = it->next;
		if (it->state == FREED)
			continue;
		it->state = RUNNING;
		is_brought_in = 0;
		it->callback(0, it->key, it->value);
		if (countdown)
			run_nested();
		for (; busy; busy--)
			take_sample(0);
		if (it->state == RUNNING)
			it->state = STANDBY;
		for (; late; late--)
			take_sample(0);
	}
}

#include "maps.h"
#include "helpers.h"

// A machine on which nothing has happened, with a table of its code.
static void start(void)
{
	struct map all[] = {
		{ &tasks, 1, 4, sizeof(struct task_state) },
		{ &empty_task, 0, 4, sizeof(struct task_state) },
		{ &rooms, 0, 4, sizeof(struct room) },
		{ &cpus, 0, 4, sizeof(struct cpu) },
		{ &files, 1, sizeof(struct file_key), sizeof(struct code_file) },
		{ &spaces, 1, 4, sizeof(struct space) },
		{ &empty_space, 0, 4, sizeof(struct space) },
		{ &calls_now, 0, 4, sizeof(struct calls) },
		{ &ring },
	};
	struct file_key key = { 7, 0x1000, changed_at(&inode_of_code), 1, 0 };
	struct code_file file = { FILE_HAS_TABLE, 0, 1, 0, { { 0, 0x10000, CODE } } };

	for (u32 i = 0; i < 9; i++)
		for (u32 at = 0; at < ELEMENTS; at++)
			free(maps[i].element[at].bytes);
	memcpy(maps, all, sizeof(maps));
	memset(slots, 0, sizeof(slots));
	memset(counts, 0, sizeof(counts));
	current = slots;
	can_defer = 1;
	cpu = refusals = is_absent = is_full_of_samples = is_full_of_stacks = countdown = 0;
	update(&files, &key, &file, BPF_NOEXIST);
}

static void print_counts(void)
{
	struct map *map = map_of(&tasks);
	u32 left = 0, zero = 0;

	printf("counts");
	for (u32 i = 0; i < COUNTS; i++)
		printf(" %llu", counts[i]);
	for (u32 i = 0; i < map->used; i++)
		if (map->element[i].is_there)
			left += ((struct task_state *)(map->element[i].bytes + 8))->state != 0;
	for (; zero < ROOMS; zero++)
		if (map_of(&rooms)->element[zero].bytes)
			left += ((struct room *)element_of(map_of(&rooms), &zero))->is_taken;
	printf(" %u\n", left);
}

static void enter_kernel(u64 pc, u64 number, u32 depth)
{
	current->registers[IP] = pc;
	current->registers[ORIG_AX] = number;
	current->registers[SP] = STACK;
	current->registers[CS] = 0x33;
	current->depth = depth;
	current->former = current->task.pid;
}

static void act(char *line)
{
	char what[16] = "";
	u64 a = 0, b = 0, c = 0, d = 0, e = 0;

	sscanf(line, "%15s %llu %llu %llu %llu %llu", what, &a, &b, &c, &d, &e);
	if (!strcmp(what, "start")) {
		start();
	} else if (!strcmp(what, "task")) { // slot, id, time of its start, leader's slot, flags
		struct simulated *it = &slots[a];

		memset(it, 0, sizeof(*it));
		it->task.flags = e;
		it->task.pid = b;
		it->task.start_time = c;
		it->task.group_leader = &slots[d].task;
		it->task.mm = d == a ? new_memory() : slots[d].task.mm;
		it->task.tgid = slots[d].task.pid;
		it->task.signal = d == a ? calloc(1, sizeof(struct signal_struct)) : slots[d].task.signal;
		it->task.signal->live.counter++;
	} else if (!strcmp(what, "run")) {
		current = &slots[a];
	} else if (!strcmp(what, "cpu")) {
		cpu = a;
	} else if (!strcmp(what, "user")) {
		enter_kernel(a, -1, b);
		take_sample(1);
	} else if (!strcmp(what, "call")) {
		enter_kernel(a, b, c);
	} else if (!strcmp(what, "kernel")) {
		take_sample(0);
	} else if (!strcmp(what, "wait")) {
		is_waiting = 1;
		take_sample(0);
		is_waiting = 0;
	} else if (!strcmp(what, "registers")) {
		current->registers[IP] = a;
		if (current->is_between)
			on_exec((u64[]){ 0, current->former, 0 });
		current->is_between = 0;
	} else if (!strcmp(what, "memory")) { // executes: another memory, at the same place perhaps
		if (!a)
			current->task.mm = new_memory();
		current->is_between = 1;
	} else if (!strcmp(what, "number")) { // a thread that executes becomes the leader
		current->former = current->task.pid;
		current->task.pid = a;
		current->task.start_time = current->task.group_leader->start_time;
		current->task.group_leader = &current->task;
	} else if (!strcmp(what, "return")) {
		countdown = a;
		run_works(b, c);
	} else if (!strcmp(what, "exit")) {
		countdown = a;
		current->task.flags |= PF_EXITING;
		current->task.signal->live.counter--;
		on_end(0);
		if (countdown)
			run_nested();
		current->task.mm = 0;
		run_works(0, 0);
	} else if (!strcmp(what, "refuse")) {
		refusals = a;
	} else if (!strcmp(what, "full")) {
		is_full_of_samples = a;
		is_full_of_stacks = b;
	} else if (!strcmp(what, "absent")) {
		is_absent = a;
	} else if (!strcmp(what, "old")) {
		can_defer = 0;
	} else if (!strcmp(what, "counts")) {
		print_counts();
	} else {
		fprintf(stderr, "no event: %s\n", line);
		exit(1);
	}
}

int main(void)
{
	char line[128];

	set_helpers();
	while (fgets(line, sizeof(line), stdin)) {
		// What comes within the next event.
		if (line[0] == '\t')
			strcat(nested, line + 1);
		else
			act(line);
	}
	return 0;
}
