/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* A task that has been sampled. */
#ifndef UNWIND_TASKS_H
#define UNWIND_TASKS_H

#include "module.h"

struct task {
	struct unwind_task unwind;
	struct task_struct *task;
	/* Of the rings with this number. */
	struct who who;
	u64 who_serial;
	struct callback_head work;
	struct irq_work irq;
	/* The work, or what queues it, is queued; so the module is in use. */
	atomic_t queued;

	/* Guards the next two. */
	spinlock_t lock;
	/* Changed by others only while it does not walk. */
	struct space *space;
	bool walks;

	/* Of the walk. */
	struct walk_memory *memory;
	u32 searches;
};

#endif
