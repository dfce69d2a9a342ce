// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Samples of user code whose stacks are walked by tables: at once where memory is resident and the
// stack is short, else in the task itself before it returns to user code, where memory may be
// faulted in. A cookie ties a sample to its stack; the samples of one kernel entry share it.
//
// A walk here knows tables, and that code of V8 keeps frame pointers where it calls. What they do not say (code without a row, a rule that needs a
// register which is not carried, a return address of zero) is not guessed: the registers and the
// stack are copied instead, for a walk outside that knows more.
#include "kernel.h"
#include "records.h"

// Set by the loader.
const volatile u32 max_frames = MAX_FRAMES;
const volatile u32 may_fault = 1;
const volatile u32 stops = 0;     // a process when its stack is walked
const volatile u32 waits = ~0u;   // the event of threads that begin to wait
const volatile u32 pid_namespace = 0; // the inode of the recorder's, 0 of the first one

#include "frames.h"
#include "output.h"
#include "stack_copy.h"
#include "calls.h"
#include "v8.h"

#define NOW_FRAMES 256
// Parts of an interpreter's memory that are brought in for a stack at most.
#define ABSENT_PARTS 64

// What a task carries for deferred walks. The states are those of unwind_core::deferred, of which the
// kernel has a part: its task work is busy from a request until the callback has returned and is released.
// - Delivering and Delivered are that. A request finds the work busy and has been executed already.
// - user_return is the release: what is requested after it, before user code, has a cookie of its own.
// - close is the kernel's flag of tasks that exit. It says nothing of an exec: deliver finds out.
// There is one client.
enum { IDLE, PENDING };
struct task_state {
	struct bpf_task_work work;
	u64 cookie;
	u64 mm;
	u64 started; // another task may get the same number
	u64 task;
	u32 state;
	u32 tid; // as the sample that asked tells it
	u32 looks; // for V8
	u32 unused;
	u64 registers[REGISTERS];
};
struct plain_state {
	u8 bytes[sizeof(struct task_state)]; // what holds a task work is no argument of a helper
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct task_state);
} tasks SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct plain_state);
} empty_task SEC(".maps");

// Room for the frames of a walk in a task, which may sleep.
struct room {
	u32 is_taken;
	u32 unused;
	struct stack_record stack;
	struct walk walk;
	struct kept kept;
	struct calls calls;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ROOMS);
	__type(key, u32);
	__type(value, struct room);
} rooms SEC(".maps");

// What a CPU needs for a sample. Samples do not interrupt each other.
struct cpu {
	u64 serial;
	u64 registers[REGISTERS];
	struct sample_record sample;
	struct record_head head;
	u64 pcs[NOW_FRAMES]; // after the head
	struct walk walk;
	struct kept kept;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");
// Apart from it, since a CPU's part of a value has a limit of 32 KiB.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct calls);
} calls_now SEC(".maps");

static __always_inline struct room *take_room(void)
{
	struct bpf_iter_num it;
	struct room *taken = 0;
	u32 i = 0;

	begin_loop(it, ROOMS);
	while (next_round(it, i)) {
		struct room *room = bpf_map_lookup_elem(&rooms, &i);

		if (room && __sync_val_compare_and_swap(&room->is_taken, 0, 1) == 0) {
			taken = room;
			break;
		}
	}
	end_loop(it);
	return taken;
}

// Whether registers are those with which a program asks to be replaced by another.
static __always_inline int is_execve(const u64 *registers)
{
	u64 number = registers[ORIG_AX];

	if ((registers[CS] & 0xffff) == CODE_32_BIT)
		return number == 11 || number == 358;
	return number == 59 || number == 322;
}

// Whether a task has executed another program since its request. Until the new one's registers are
// there, the task has those of the old one beside the memory of the new one.
static __always_inline int has_executed(struct task_struct *task, struct task_state *state)
{
	u64 ip = 0;
	void *registers = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());

	if ((u64)task->mm != state->mm)
		return 1;
	if (!is_execve(state->registers))
		return 0;
	return bpf_probe_read_kernel(&ip, sizeof(ip), registers + IP * 8) || ip != state->registers[IP];
}

// There is no stack any more, for this reason. A thread that executes another program may have asked under
// its leader's number by now: what it asked for under its own is told under that.
static __always_inline void abandon(u64 cookie, u32 tid, u32 end)
{
	struct record_head head;

	count(end == END_EXEC ? COUNT_EXEC : COUNT_EXIT);
	put_head(&head, RECORD_STACK, cookie);
	head.tid = tid;
	put_stack(&head, 0, 0, end);
}

// Reads the calls of an interpreter, which may be brought in.
static __always_inline u32 read_calls_of(struct walk *w, struct calls *calls)
{
	struct bpf_iter_num it;
	u32 i = 0, end = 0;

	begin_loop(it, ABSENT_PARTS);
	while (next_round(it, i)) {
		end = read_calls(w, calls);
		if (end != END_MEMORY || !bring_in(w->absent, w->absent_len))
			break;
	}
	end_loop(it);
	return end;
}

// Walks the stack of the task that is about to return to user code.
static int deliver(struct bpf_map *map, void *key, void *value)
{
	struct task_struct *task = current_task();
	struct task_state *state = value;
	struct bpf_iter_num it;
	struct room *room;
	struct walk *w;
	u32 i = 0, end = 0, by_tables;

	count(COUNT_WALKED);
	if (has_executed(task, state)) {
		abandon(state->cookie, state->tid, task->mm ? END_EXEC : END_EXIT);
		goto out;
	}
	room = take_room();
	if (!room) {
		copy(state->registers, state->cookie, END_ROOM);
		goto out;
	}
	put_head(&room->stack.head, RECORD_STACK, state->cookie);
	w = &room->walk;
	begin(w, &room->kept, state->registers, task->tgid);
	begin_calls(&room->calls, state->registers);
	begin_loop(it, 4 * MAX_FRAMES);
	while (next_round(it, i)) {
		// In memory, of which the verifier does not know the values.
		u32 frames = room->stack.head.count;
		u64 sp = w->sp;

		room->stack.pcs[frames & (MAX_FRAMES - 1)] = w->pc;
		by_tables = end = step(w, &room->kept, 1);
		if (end == END_NO_FILE && state->looks < V8_LOOKS && v8_of(w) == NO_INTERPRETER) {
			if (!look_for_v8(w))
				state->looks++;
		}
		if (end == END_NO_FILE || end == END_NO_ROW)
			end = step_in_v8(w, &room->calls, frames, end);
		if (end == END_MEMORY && bring_in(w->absent, w->absent_len))
			continue;
		if (end == END_MEMORY)
			end = by_tables;
		room->stack.head.count = frames + 1;
		if (!by_tables && w->module.interpreter && !(w->module.interpreter & IS_V8))
			note_frame(w, &room->calls, frames, sp);
		if (end || frames + 1 >= max_frames)
			break;
	}
	end_loop(it);
	if (!end)
		end = END_DEPTH;
	if (is_for_outside(end) || room->calls.is_unproven) {
		if (!room->calls.is_v8 || !put_calls(&room->calls, state->cookie, end == END_OUTERMOST ? 0 : end))
			copy(state->registers, state->cookie, end == END_OUTERMOST ? END_NO_FILE : end);
	} else if (room->calls.record.interpreter == NO_INTERPRETER ||
		 !put_calls(&room->calls, state->cookie,
			    room->calls.is_v8 ? 0 : read_calls_of(w, &room->calls)))
		put_stack(&room->stack.head, room->stack.head.count, MAX_FRAMES, end);
	__sync_lock_test_and_set(&room->is_taken, 0);
	if (stops)
		bpf_send_signal(SIGSTOP);
out:
	__sync_lock_test_and_set(&state->state, IDLE);
	return 0;
}

// Has the task deliver before it returns to user code.
static __always_inline int schedule(struct task_state *state)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (exists(bpf_task_work_schedule_resume_impl))
		return bpf_task_work_schedule_resume_impl(task, &state->work, &tasks, deliver, 0);
	if (exists(bpf_task_work_schedule_resume))
		return bpf_task_work_schedule_resume(task, &state->work, &tasks, deliver);
	return -EOPNOTSUPP;
}

static __always_inline struct task_state *state_of(u32 tid)
{
	struct task_state *state = bpf_map_lookup_elem(&tasks, &tid);
	struct plain_state *empty;
	u32 zero = 0;

	if (state)
		return state;
	empty = bpf_map_lookup_elem(&empty_task, &zero);
	if (empty)
		bpf_map_update_elem(&tasks, &tid, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&tasks, &tid);
}

// Walks at once, as far as memory is resident and modules are known. Returns whether that is all.
__noinline int walk_now(struct cpu *cpu, u64 cookie, u32 tgid, int may_look)
{
	struct bpf_iter_num it;
	struct calls *calls;
	struct walk *w;
	u32 i = 0, frames = 0, end = 0, zero = 0, calls_end, is_lost = 0;

	calls = bpf_map_lookup_elem(&calls_now, &zero);
	if (!cpu || !calls)
		return 0;
	w = &cpu->walk;
	begin(w, &cpu->kept, cpu->registers, tgid);
	begin_calls(calls, cpu->registers);
	begin_loop(it, NOW_FRAMES);
	while (next_round(it, i)) {
		u64 sp = w->sp;

		cpu->pcs[i & (NOW_FRAMES - 1)] = w->pc;
		frames = i + 1;
		end = step(w, &cpu->kept, may_look);
		if (end)
			break;
		if (w->module.interpreter && !(w->module.interpreter & IS_V8))
			note_frame(w, calls, i, sp);
	}
	end_loop(it);
	if (end != END_OUTERMOST && !may_look)
		return 0;
	if (calls->record.interpreter != NO_INTERPRETER) {
		calls_end = read_calls(w, calls);
		if (calls_end == END_MEMORY && !may_look)
			return 0;
		is_lost = put_calls(calls, cookie, calls_end);
	}
	if (!is_lost) {
		put_head(&cpu->head, RECORD_STACK, cookie);
		put_stack(&cpu->head, frames, NOW_FRAMES, end ? end : END_DEPTH);
	}
	count(COUNT_NOW);
	return 1;
}

// Whether a state is still that of a task which had this one's number: of a thread that executes another
// program, and has its leader's number by now. Else it is this task's.
static __always_inline int is_of_another(struct task_state *state, struct task_struct *task)
{
	if (state->started == task->start_time)
		return 0;
	if (state->state != IDLE)
		return 1;
	state->started = task->start_time;
	state->task = (u64)task;
	state->cookie = 0;
	return 0;
}

// Asks for the task's stack, which is walked at once if it can be. Returns the cookie of the sample; where
// the request is refused no stack with it comes.
static __always_inline u64 request(struct cpu *cpu, struct task_struct *task, int is_at_once)
{
	u64 cookie = (u64)(bpf_get_smp_processor_id() + 1) << 48 | ++cpu->serial, before;
	struct task_state *state = state_of(task->pid);
	int error;

	if (!state || is_of_another(state, task) ||
	    bpf_probe_read_kernel(cpu->registers, sizeof(cpu->registers),
				  (void *)bpf_task_pt_regs(bpf_get_current_task_btf()))) {
		count(COUNT_REFUSED);
		return cookie;
	}
	if (__sync_val_compare_and_swap(&state->state, IDLE, PENDING) != IDLE) {
		count(COUNT_SHARED);
		return state->cookie;
	}
	if (is_at_once && !stops && walk_now(cpu, cookie, task->tgid, 0)) {
		state->state = IDLE;
		return cookie;
	}
	__builtin_memcpy(state->registers, cpu->registers, sizeof(cpu->registers));
	if (state->mm != (u64)task->mm)
		state->looks = 0;
	state->mm = (u64)task->mm;
	state->tid = cpu->sample.head.tid;
	before = state->cookie;
	state->cookie = cookie;
	error = schedule(state);
	if (!error) {
		count(COUNT_DEFERRED);
		return cookie;
	}
	state->state = IDLE;
	state->cookie = before;
	if (error == -EBUSY && before) {
		count(COUNT_SHARED);
		return before;
	}
	if (error != -EOPNOTSUPP || !walk_now(cpu, cookie, task->tgid, 1))
		count(COUNT_REFUSED);
	return cookie;
}

// The number that the event was attached with. The events of threads that are created later have none of
// their own.
static __always_inline u64 number_of_event(struct bpf_perf_event_data *context)
{
	struct perf_event *event = to_read(struct bpf_perf_event_data_kern, context)->event;

	return event->parent ? event->parent->bpf_cookie : event->bpf_cookie;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *context)
{
	struct task_struct *task = current_task();
	u32 zero = 0, kernel = 0;
	u64 time = bpf_ktime_get_ns();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &zero);
	int is_user;

	if (!cpu)
		return 0;
	count(COUNT_SAMPLES);
	is_user = (context->regs[CS] & 3) == 3;
	put_head(&cpu->sample.head, RECORD_SAMPLE, 0);
	cpu->sample.head.time = time;
	cpu->sample.head.flags = is_user ? IN_USER_MODE : 0;
	cpu->sample.pc = context->regs[IP];
	cpu->sample.period = context->sample_period;
	cpu->sample.event = number_of_event(context);
	cpu->sample.cpu = bpf_get_smp_processor_id();
	if (!is_user) {
		long len = bpf_get_stack(context, cpu->sample.pcs, sizeof(cpu->sample.pcs), 0);

		kernel = len > 0 ? len / 8 : 0;
	}
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER | PF_EXITING) || !task->mm)
		count(COUNT_NO_USER);
	else
		cpu->sample.head.cookie = request(cpu, task, is_user || cpu->sample.event == waits);
	if (kernel > KERNEL_FRAMES)
		kernel = KERNEL_FRAMES;
	cpu->sample.head.count = kernel;
	if (bpf_ringbuf_output(&ring, &cpu->sample,
			       __builtin_offsetof(struct sample_record, pcs) + kernel * 8,
			       BPF_RB_NO_WAKEUP))
		count(COUNT_DROPPED);
	return 0;
}

// Forgets the state of a task of this number. What is pending is abandoned.
static __always_inline void forget(u32 tid, struct task_state *state, u32 end)
{
	u64 cookie = state->cookie;
	u32 asked = state->tid;

	if (__sync_val_compare_and_swap(&state->state, PENDING, IDLE) == PENDING)
		abandon(cookie, asked, end);
	bpf_map_delete_elem(&tasks, &tid);
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *context)
{
	struct task_struct *task = current_task();
	u32 tid = task->pid, tgid = task->tgid;
	struct task_state *state = bpf_map_lookup_elem(&tasks, &tid);

	if (state && state->started == task->start_time)
		forget(tid, state, END_EXIT);
	// The first thread may end before others.
	if (!task->signal->live.counter)
		bpf_map_delete_elem(&spaces, &tgid);
	return 0;
}

// A thread that executes another program has given up its number for its leader's. By now it may be another
// task's.
SEC("tp_btf/sched_process_exec")
int on_exec(u64 *context)
{
	struct task_struct *task = current_task();
	u32 before = context[1];
	struct task_state *state = bpf_map_lookup_elem(&tasks, &before);

	if (state && before != task->pid && state->task == (u64)task)
		forget(before, state, END_EXEC);
	return 0;
}

char terms[] SEC("license") = "Dual MIT/GPL";
