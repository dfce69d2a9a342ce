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

// The number that the current task or its process has in the recorder's namespace, as perf's records
// have it: 0 if it has none there, -1 if it has none any more.
__noinline u32 number_there(u32 of_process)
{
	struct task_struct *task = current_task();
	struct pid *pid = of_process ? task->group_leader->thread_pid : task->thread_pid;
	// The kernel's struct upid, with room for the namespace's inode.
	struct {
		u32 number, inode;
		struct pid_namespace *ns;
	} there;
	u32 i;

	if (!pid)
		return -1;
	for (i = 0; i < PID_LEVELS && i <= pid->level; i++) {
		if (bpf_probe_read_kernel(&there, sizeof(there), &pid->numbers[0] + i) ||
		    bpf_probe_read_kernel(&there.inode, sizeof(there.inode), &there.ns->ns.inum))
			break;
		if (there.inode == pid_namespace)
			return there.number;
	}
	return 0;
}

static __always_inline void put_head(struct record_head *head, u32 kind, u64 cookie)
{
	struct task_struct *task = current_task();

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
