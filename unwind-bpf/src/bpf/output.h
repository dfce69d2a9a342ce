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

static __always_inline void put_head(struct record_head *head, u32 kind, u64 cookie)
{
	struct task_struct *task = bpf_get_current_task_btf();

	head->kind = kind;
	head->tid = task->pid;
	head->tgid = task->tgid;
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
