// SPDX-License-Identifier: MIT OR GPL-2.0
//
// What the program tells: counts, and the ring of records.
#pragma once

#include "kernel.h"
#include "records.h"

u64 counts[COUNTS];

static __always_inline void count(u32 which)
{
	__sync_fetch_and_add(&counts[which], 1);
}

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} ring SEC(".maps");

// Namespaces lie in each other at most as deep: MAX_PID_NS_LEVEL.
#define PID_LEVELS 33

static __always_inline u64 kernel_word(const void *from)
{
	u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), from);
	return word;
}

// The number that the current task or its process has in the recorder's namespace, as perf's records
// have it: 0 if it has none there, -1 if it has none any more.
__noinline u32 number_there(u32 of_process)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pid *pid = of_process ? task->group_leader->thread_pid : task->thread_pid;
	struct bpf_iter_num it;
	u32 i = 0, number = 0, inode = 0, level;

	if (!pid)
		return -1;
	level = pid->level;
	begin_loop(it, PID_LEVELS);
	while (next_round(it, i)) {
		struct upid *upid = &pid->numbers[0] + i;
		struct pid_namespace *ns;

		if (i > level)
			break;
		ns = (void *)kernel_word(&upid->ns);
		bpf_probe_read_kernel(&inode, sizeof(inode), &ns->ns.inum);
		if (inode == pid_namespace) {
			bpf_probe_read_kernel(&number, sizeof(number), &upid->nr);
			break;
		}
	}
	end_loop(it);
	return number;
}

static __always_inline void put_head(struct record_head *head, u32 kind, u64 cookie)
{
	struct task_struct *task = bpf_get_current_task_btf();

	head->kind = kind;
	head->tid = pid_namespace ? number_there(0) : task->pid;
	head->tgid = pid_namespace ? number_there(1) : task->tgid;
	head->count = 0;
	head->cookie = cookie;
	head->time = bpf_ktime_get_ns();
	head->end = 0;
	head->flags = 0;
}

static __always_inline void put_stack(struct record_head *head, u32 frames, u32 most, u32 end)
{
	if (frames > most)
		frames = most;
	head->count = frames;
	head->end = end;
	if (bpf_ringbuf_output(&ring, head, sizeof(*head) + frames * 8, BPF_RB_NO_WAKEUP))
		count(COUNT_DROPPED_STACKS);
}

// A stack that is not there, for this reason.
static __always_inline void put_no_stack(u64 cookie, u32 end)
{
	struct record_head head;

	put_head(&head, RECORD_STACK, cookie);
	put_stack(&head, 0, 0, end);
}
