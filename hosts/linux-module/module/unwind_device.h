/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /dev/unwind: samples of tasks, with their user stacks, walked on the way back to user code.
 *
 * One program at a time has it open, with CAP_PERFMON. It asks once for UNWIND_SETUP, hands tables in by
 * UNWIND_TABLE, adds tasks or CPUs by UNWIND_ADD, and reads one ring for each possible CPU: mmap at the offset
 * CPU * stride, of `stride` bytes. A ring begins with a struct perf_event_mmap_page, of which data_head, data_tail,
 * data_offset and data_size are used, as perf's. Closing ends it all.
 *
 * Its records are perf's, for an event with these fields: IP, TID, TIME, CPU, PERIOD, CALLCHAIN; sample_id_all,
 * defer_callchain and defer_output. Times are of CLOCK_MONOTONIC. Which programs run and what they map is told by
 * perf's own dummy event.
 */
#ifndef UNWIND_DEVICE_H
#define UNWIND_DEVICE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define UNWIND_DEVICE_VERSION 1

/* `value` is how many times a second, and not a period. */
#define UNWIND_SETUP_FREQUENCY (1 << 0)
/* A task is sampled from its next exec on. */
#define UNWIND_SETUP_ON_EXEC (1 << 1)
/* Samples of user code alone. */
#define UNWIND_SETUP_USER_ONLY (1 << 2)
/*
 * A stack's record has one word more, before the first address: enum unwind_sample, from bit 8 on enum unwind_end, bit 16
 * if the stack is complete, and bit 17 if the walk ended in code whose table is awaited. Stacks that are lost have a
 * record, too, without addresses. perf knows no such word.
 */
#define UNWIND_SETUP_TELL_ENDS (1 << 3)
/*
 * Each file that is mapped gets a table by UNWIND_TABLE, unless the module finds one in memory. Until then walks end in its code,
 * and no frame pointer is followed.
 */
#define UNWIND_SETUP_AWAIT_TABLES (1 << 4)

struct unwind_setup {
	__u32 version;
	__u32 flags;
	/* As in struct perf_event_attr; breakpoints and tracepoints are refused. */
	__u32 type;
	/* Bytes of the records of each ring: a power of two, of pages. */
	__u32 ring_bytes;
	__u64 config;
	__u64 value;
	/* Set by the module: bytes from one ring to the next. */
	__u64 stride;
};

/* A thread, and all that it creates from now on; or, if `tid` is -1, a CPU. */
struct unwind_add {
	__s32 tid;
	__s32 cpu;
};

/*
 * An SFrame table that was made of a file's call frame information, for all who map that file, also if they run already. One
 * of no bytes says that there is none.
 */
struct unwind_table {
	__s32 fd;
	__u32 bytes;
	/* Where the table is. */
	__u64 table;
	/* The linked address that it was made for. */
	__u64 address;
};

#define UNWIND_COUNTED_ENDS 64
#define UNWIND_COUNTED_OUTCOMES 32
#define UNWIND_COUNTED_SAMPLES 8

/* Since the module was loaded. */
struct unwind_counts {
	__u64 samples;
	/* Samples without a cookie, since there was no room for another task. */
	__u64 no_task;
	/* Stacks that were not walked, since there was no memory, or a signal came before the first walk of a program. */
	__u64 no_memory;
	/* Records for which a ring had no room. */
	__u64 no_room;
	/* How requests came out, by enum unwind_outcome. */
	__u64 outcomes[UNWIND_COUNTED_OUTCOMES];
	/* Deliveries, by enum unwind_sample. */
	__u64 deliveries[UNWIND_COUNTED_SAMPLES];
	/* Why stacks have no more frames, by enum unwind_end. */
	__u64 ends[UNWIND_COUNTED_ENDS];
};

#define UNWIND_SETUP _IOWR('U', 0xb0, struct unwind_setup)
#define UNWIND_ADD _IOW('U', 0xb1, struct unwind_add)
#define UNWIND_TABLE _IOW('U', 0xb2, struct unwind_table)
#define UNWIND_COUNTS _IOR('U', 0xb3, struct unwind_counts)
/* Takes no more samples; stacks that were asked for still come. */
#define UNWIND_STOP _IO('U', 0xb4)

#endif
