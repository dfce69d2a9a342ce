// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Samples of user code whose stacks are walked by tables: at once where memory is resident and the
// stack is short, else in the task itself before it returns to user code, where memory may be
// faulted in. A cookie ties a sample to its stack; the samples of one kernel entry share it.
//
// A walk here knows tables alone. What they do not say (code without a row, a rule that needs a
// register which is not carried, a return address of zero) is not guessed: the registers and the
// stack are copied instead, for a walk outside that knows more.
#include "kernel.h"
#include "records.h"

// Set by the loader.
const volatile u32 max_frames = MAX_FRAMES;
const volatile u32 may_fault = 1;
const volatile u32 stops = 0; // a process when its stack is walked

#include "frames.h"
#include "output.h"
#include "stack_copy.h"

#define NOW_FRAMES 128

// The request of a task. Its states are those of unwind_core::deferred.
enum { NONE, PENDING };
struct task {
	struct bpf_task_work work;
	u64 cookie;
	u64 mm;
	u64 started; // another task may get the same number
	u32 state;
	u32 unused;
	u64 registers[REGISTERS];
};
struct plain_task {
	u8 bytes[sizeof(struct task)]; // what holds a task work is no argument of a helper
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct plain_task);
} empty_task SEC(".maps");

// Room for the frames of a walk in a task, which may sleep.
struct room {
	u32 is_taken;
	u32 unused;
	struct stack_record stack;
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
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

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
static __always_inline int has_executed(struct task_struct *task, struct task *request)
{
	u64 ip = 0;
	void *registers = (void *)bpf_task_pt_regs(task);

	if ((u64)task->mm != request->mm)
		return 1;
	if (!is_execve(request->registers))
		return 0;
	return bpf_probe_read_kernel(&ip, sizeof(ip), registers + IP * 8) || ip != request->registers[IP];
}

// Walks the stack of the task that is about to return to user code.
static int deliver(struct bpf_map *map, void *key, void *value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task *request = value;
	struct bpf_iter_num it;
	struct room *room;
	struct walk w;
	u32 i = 0, frames = 0, end = 0;

	count(COUNT_WALKED);
	if (has_executed(task, request)) {
		count(task->mm ? COUNT_EXEC : COUNT_EXIT);
		put_no_stack(request->cookie, task->mm ? END_EXEC : END_EXIT);
		goto out;
	}
	room = take_room();
	if (!room) {
		copy(request->registers, request->cookie, END_ROOM);
		goto out;
	}
	put_head(&room->stack.head, RECORD_STACK, request->cookie);
	begin(&w, request->registers, task->tgid);
	begin_loop(it, max_frames);
	while (next_round(it, i)) {
		if (i >= MAX_FRAMES)
			break;
		room->stack.pcs[i & (MAX_FRAMES - 1)] = w.pc;
		frames = i + 1;
		end = step(1, 1, &w);
		if (end)
			break;
	}
	end_loop(it);
	if (!end)
		end = END_DEPTH;
	if (is_for_outside(end))
		copy(request->registers, request->cookie, end);
	else
		put_stack(&room->stack.head, frames, MAX_FRAMES, end);
	__sync_lock_test_and_set(&room->is_taken, 0);
	if (stops)
		bpf_send_signal(SIGSTOP);
out:
	__sync_lock_test_and_set(&request->state, NONE);
	return 0;
}

// Has the task's stack walked before it returns to user code.
static __always_inline int schedule(struct task_struct *task, struct task *request)
{
	if (exists(bpf_task_work_schedule_resume_impl))
		return bpf_task_work_schedule_resume_impl(task, &request->work, &tasks, deliver, 0);
	if (exists(bpf_task_work_schedule_resume))
		return bpf_task_work_schedule_resume(task, &request->work, &tasks, deliver);
	return -EOPNOTSUPP;
}

static __always_inline struct task *request_of(u32 tid)
{
	struct task *request = bpf_map_lookup_elem(&tasks, &tid);
	struct plain_task *empty;
	u32 zero = 0;

	if (request)
		return request;
	empty = bpf_map_lookup_elem(&empty_task, &zero);
	if (empty)
		bpf_map_update_elem(&tasks, &tid, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&tasks, &tid);
}

// Walks at once, as far as memory is resident and modules are known. Returns whether that is all.
static __always_inline int walk_now(struct cpu *cpu, u64 cookie, u32 tgid, const int may_look)
{
	struct bpf_iter_num it;
	struct walk w;
	u32 i = 0, frames = 0, end = 0;

	begin(&w, cpu->registers, tgid);
	begin_loop(it, NOW_FRAMES);
	while (next_round(it, i)) {
		cpu->pcs[i & (NOW_FRAMES - 1)] = w.pc;
		frames = i + 1;
		end = step(0, may_look, &w);
		if (end)
			break;
	}
	end_loop(it);
	if (end != END_OUTERMOST && !may_look)
		return 0;
	put_head(&cpu->head, RECORD_STACK, cookie);
	put_stack(&cpu->head, frames, NOW_FRAMES, end ? end : END_DEPTH);
	count(COUNT_NOW);
	return 1;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 zero = 0, tid = task->pid, kernel = 0;
	u64 cookie = 0, before, time = bpf_ktime_get_ns();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &zero);
	struct task *request;
	int is_user, error;

	if (!cpu)
		return 0;
	count(COUNT_SAMPLES);
	is_user = (context->regs[CS] & 3) == 3;
	put_head(&cpu->sample.head, RECORD_SAMPLE, 0);
	cpu->sample.head.time = time;
	cpu->sample.head.flags = is_user ? IN_USER_MODE : 0;
	cpu->sample.pc = context->regs[IP];
	cpu->sample.period = context->sample_period;
	cpu->sample.event = bpf_get_attach_cookie(context);
	cpu->sample.cpu = bpf_get_smp_processor_id();
	if (!is_user) {
		long len = bpf_get_stack(context, cpu->sample.pcs, sizeof(cpu->sample.pcs), 0);

		kernel = len > 0 ? len / 8 : 0;
	}
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER | PF_EXITING) || !task->mm) {
		count(COUNT_NO_USER);
		goto put;
	}
	// Where no stack can be had, none with this cookie comes.
	cookie = (u64)(bpf_get_smp_processor_id() + 1) << 48 | ++cpu->serial;
	request = request_of(tid);
	if (!request || bpf_probe_read_kernel(cpu->registers, sizeof(cpu->registers),
					      (void *)bpf_task_pt_regs(task))) {
		count(COUNT_REFUSED);
		goto put;
	}
	if (request->started != task->start_time) {
		request->started = task->start_time;
		request->state = NONE;
	}
	if (__sync_val_compare_and_swap(&request->state, NONE, PENDING) != NONE) {
		count(COUNT_SHARED);
		cookie = request->cookie;
		goto put;
	}
	if (is_user && !stops && walk_now(cpu, cookie, task->tgid, 0)) {
		request->state = NONE;
		goto put;
	}
	__builtin_memcpy(request->registers, cpu->registers, sizeof(cpu->registers));
	request->mm = (u64)task->mm;
	before = request->cookie;
	request->cookie = cookie;
	error = schedule(task, request);
	if (!error) {
		count(COUNT_DEFERRED);
		goto put;
	}
	request->state = NONE;
	if (error == -EBUSY) {
		// The walk of this entry is done, but its work not yet released.
		request->cookie = cookie = before;
		count(COUNT_SHARED);
	} else if (error != -EOPNOTSUPP || !walk_now(cpu, cookie, task->tgid, 1)) {
		count(COUNT_REFUSED);
	}
put:
	cpu->sample.head.cookie = cookie;
	if (kernel > KERNEL_FRAMES)
		kernel = KERNEL_FRAMES;
	cpu->sample.head.count = kernel;
	if (bpf_ringbuf_output(&ring, &cpu->sample,
			       __builtin_offsetof(struct sample_record, pcs) + kernel * 8,
			       BPF_RB_NO_WAKEUP))
		count(COUNT_DROPPED);
	return 0;
}

// A task that ends while its request is pending: its stack will not come.
SEC("tp_btf/sched_process_exit")
int on_exit(u64 *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 tid = task->pid, tgid = task->tgid;
	struct task *request = bpf_map_lookup_elem(&tasks, &tid);

	if (request) {
		u64 cookie = request->cookie;

		if (__sync_val_compare_and_swap(&request->state, PENDING, NONE) == PENDING) {
			count(COUNT_EXIT);
			put_no_stack(cookie, END_EXIT);
		}
		bpf_map_delete_elem(&tasks, &tid);
	}
	if (tid == tgid)
		bpf_map_delete_elem(&spaces, &tgid);
	return 0;
}

char terms[] SEC("license") = "Dual MIT/GPL";
