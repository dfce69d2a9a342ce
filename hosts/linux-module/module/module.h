/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the files of the module share. */
#ifndef UNWIND_MODULE_H
#define UNWIND_MODULE_H

#include <linux/irq_work.h>
#include <linux/kref.h>
#include <linux/mmu_notifier.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/pid_namespace.h>
#include <linux/task_work.h>

#include "unwind_device.h"
#include <unwind_ffi.h>

/* ---- limits ---- */

/* Tasks that have been sampled and still live, and how many of them share a place. */
#define MAX_TASKS 8192
#define TASKS_NEAR 16
/* Walks at a time, each with less than 7 KiB. */
#define MAX_WALKS 1024
#define MAX_WALKS_OF_SPACE 64
/* Frames of a user stack, and of a kernel stack with those of the interrupt. */
#define MAX_FRAMES 127
#define MAX_KERNEL_FRAMES 64
/* Files in which one walk looks for tables, and program headers of each. */
#define MAX_SEARCHES 16
#define MAX_HEADERS 32
/* Mappings below code in which its ELF header is looked for. */
#define MAX_MAPPINGS_BELOW 16
/* Of a program that has the device open. */
#define MAX_EVENTS 4096
#define MAX_TABLES 256
#define MAX_TABLE_BYTES (64u << 20)
#define MAX_ALL_TABLES_BYTES (256u << 20)
#define MAX_RING_BYTES (8u << 20)
#define MAX_HERTZ 10000
#define MIN_CLOCK_PERIOD_NS 100000

/* ---- rings.c: records, in any context ---- */

struct ring;

struct rings {
	struct ring __percpu *each;
	/* Whose numbers of tasks records have. */
	struct pid_namespace *pids;
	/* None before had it. */
	u64 serial;
	u64 stride;
	/* UNWIND_SETUP_TELL_ENDS. */
	bool tells_ends;
};

struct who {
	u32 pid;
	u32 tid;
};

int rings_make(struct rings *rings, u32 bytes);
void rings_free(struct rings *rings);
int rings_map(struct rings *rings, struct vm_area_struct *vma);
struct who rings_who(struct rings *rings, struct task_struct *task);
void put_sample(struct rings *rings, struct who who, struct pt_regs *regs, u64 period, u64 cookie);
void put_stack(struct rings *rings, struct who who, const struct unwind_delivery *delivery);

/* ---- spaces.c: what is known of the code of an address space ---- */

struct table {
	/* It stays, so that no other file is taken for it. */
	struct file *file;
	/* NULL: the file has none. */
	void *bytes;
	u32 len;
	u64 address;
};

/* Tables of files: some are added, none is removed. */
struct tables {
	struct kref users;
	/* UNWIND_SETUP_AWAIT_TABLES. */
	bool are_awaited;
	u32 len;
	u64 bytes;
	struct table each[MAX_TABLES];
};

/* Memory of a walk. */
struct walk_memory {
	struct unwind_rows rows;
	struct unwind_scratch scratch;
	union {
		struct unwind_trace trace;
		u8 bytes[UNWIND_TRACE_BYTES(MAX_FRAMES)];
	};
};

struct space {
	struct mmu_notifier notifier;
	spinlock_t lock;
	/* How many memories of walks it has. */
	atomic_t memories;
	/* How often something was unmapped. */
	u64 unmaps;
	struct tables *tables;
	/* How many tables there were when the modules were looked for. */
	u32 tables_seen;
	/* That of the last walk, whose rows are of use to the next. */
	struct walk_memory *idle;
	union {
		struct unwind_space modules;
		u8 bytes[UNWIND_SPACE_BYTES_256];
	};
};

struct space *space_get(struct mm_struct *mm);
void space_put(struct space *space);
void space_follow_tables(struct space *space);
void spaces_end(void);
struct walk_memory *walk_memory_take(struct space *space);
void walk_memory_give(struct space *space, struct walk_memory *memory);
void tables_put(struct tables *tables);

/* ---- programs.c: tables of a program ---- */

struct mapping {
	/* NULL: of no file, as the vDSO. */
	struct file *file;
	u64 start;
	u64 end;
	u64 offset;
	/* Where the ELF header is, and what is mapped with it; zero: nowhere. */
	u64 header;
	u64 header_end;
};

void program_look(const struct mapping *mapping, struct tables *tables, struct unwind_module *module);

/* ---- tasks.c: requests, and the way back to user code ---- */

int tasks_begin(void);
void tasks_end(void);
void tasks_forget_spaces(void);
bool task_is_known(struct task_struct *of);
void task_sample(struct rings *rings, struct pt_regs *regs, u64 period);
/* entry.S: calls task_deliver, and leaves the module by the function that lets it go. */
void task_work_entry(struct callback_head *work);
void task_deliver(struct callback_head *work);

/* ---- device.c ---- */

/* What the program that has the device open has asked for. */
struct session {
	struct rings rings;
	struct tables *tables;
	struct perf_event_attr attr;
	u32 len;
	struct perf_event *events[MAX_EVENTS];
};

/* Read under rcu_read_lock. */
extern struct session __rcu *session;

DECLARE_PER_CPU(struct unwind_counts, counts);

#ifdef UNWIND_TEST_NMI
int test_nmi_begin(void);
void test_nmi_end(void);
#endif

#endif
