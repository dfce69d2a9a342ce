// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * One ring of records for each CPU. A record may be written in any context, and may interrupt one that is
 * being written on the same CPU: each reserves its room by a compare-exchange, and the outermost one shows the
 * reader all of them.
 */
#include <asm/local.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>
#include <linux/vmalloc.h>

#include "module.h"

/* PERF_RECORD_CALLCHAIN_DEFERRED and PERF_CONTEXT_USER_DEFERRED, which headers before 6.19 lack. */
#define RECORD_STACK 22
#define CONTEXT_USER_DEFERRED ((u64)-640)

#define SAMPLE_ID_WORDS 3

struct ring {
	struct perf_event_mmap_page *page;
	u64 *words;
	u64 bytes;
	/* Where the next record begins. Bytes, never taken back. */
	local_t head;
	/* How many records are being written. */
	local_t nested;
	/* Records without room since the last record that says so. */
	local_t lost;
};

struct record {
	struct ring *ring;
	/* Where the next word goes, and where the ring ends. */
	u64 *next;
	u64 *end;
};

static atomic64_t serials = ATOMIC64_INIT(0);

int rings_make(struct rings *rings, u32 bytes)
{
	int cpu;

	if (!is_power_of_2(bytes) || bytes < PAGE_SIZE || bytes > MAX_RING_BYTES)
		return -EINVAL;
	rings->stride = PAGE_SIZE + bytes;
	rings->each = alloc_percpu(struct ring);
	if (!rings->each)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		struct ring *ring = per_cpu_ptr(rings->each, cpu);

		ring->page = vmalloc_user(rings->stride);
		if (!ring->page) {
			rings_free(rings);
			return -ENOMEM;
		}
		ring->words = (void *)ring->page + PAGE_SIZE;
		ring->bytes = bytes;
		ring->page->data_offset = PAGE_SIZE;
		ring->page->data_size = bytes;
	}
	rings->pids = get_pid_ns(task_active_pid_ns(current));
	rings->serial = atomic64_inc_return(&serials);
	return 0;
}

void rings_free(struct rings *rings)
{
	int cpu;

	if (!rings->each)
		return;
	for_each_possible_cpu(cpu)
		vfree(per_cpu_ptr(rings->each, cpu)->page);
	free_percpu(rings->each);
	rings->each = NULL;
	if (rings->pids)
		put_pid_ns(rings->pids);
}

int rings_map(struct rings *rings, struct vm_area_struct *vma)
{
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT, cpu = div64_u64(offset, rings->stride);

	if (offset != cpu * rings->stride || cpu >= nr_cpu_ids || !cpu_possible(cpu) ||
	    vma->vm_end - vma->vm_start != rings->stride || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	return remap_vmalloc_range(vma, per_cpu_ptr(rings->each, cpu)->page, 0);
}

/* False if there is no room. */
static bool reserve(struct record *record, u64 bytes)
{
	struct ring *ring = record->ring;
	long head = local_read(&ring->head), old;

	for (;;) {
		/* The reader may write anything there: then it loses its own records. */
		u64 used = head - READ_ONCE(ring->page->data_tail);

		if (used > ring->bytes || bytes > ring->bytes - used)
			return false;
		old = local_cmpxchg(&ring->head, head, head + bytes);
		if (old == head)
			break;
		head = old;
	}
	record->next = ring->words + (head & (ring->bytes - 1)) / sizeof(u64);
	record->end = ring->words + ring->bytes / sizeof(u64);
	return true;
}

static __always_inline void put(struct record *record, u64 word)
{
	*record->next++ = word;
	if (unlikely(record->next == record->end))
		record->next = record->ring->words;
}

static void put_all(struct record *record, const u64 *words, u32 len)
{
	u32 until_end = min_t(u64, len, record->end - record->next), at;

	for (at = 0; at < until_end; at++)
		record->next[at] = words[at];
	record->next += until_end;
	if (unlikely(record->next == record->end))
		record->next = record->ring->words;
	for (; at < len; at++)
		*record->next++ = words[at];
}

static void put_halves(struct record *record, u32 low, u32 high)
{
	put(record, low | (u64)high << 32);
}

static void put_header(struct record *record, u32 type, u32 mode, u64 words)
{
	put_halves(record, type, mode | (u32)(words * sizeof(u64)) << 16);
}

static void put_sample_id(struct record *record, struct who who)
{
	put_halves(record, who.pid, who.tid);
	put(record, ktime_get_mono_fast_ns());
	put_halves(record, raw_smp_processor_id(), 0);
}

static void put_lost(struct ring *ring, struct who who)
{
	struct record record = { .ring = ring };
	const u64 words = 3 + SAMPLE_ID_WORDS;
	long lost;

	if (likely(!local_read(&ring->lost)) || !reserve(&record, words * sizeof(u64)))
		return;
	lost = local_xchg(&ring->lost, 0);
	put_header(&record, PERF_RECORD_LOST, 0, words);
	put(&record, 0);
	put(&record, lost);
	put_sample_id(&record, who);
}

/* Until `end` the task stays on this CPU. */
static bool begin(struct record *record, struct rings *rings, struct who who, u64 words)
{
	struct ring *ring;

	preempt_disable();
	ring = this_cpu_ptr(rings->each);
	record->ring = ring;
	local_inc(&ring->nested);
	put_lost(ring, who);
	if (reserve(record, words * sizeof(u64)))
		return true;
	local_inc(&ring->lost);
	this_cpu_inc(counts.no_room);
	return false;
}

static void end(struct record *record)
{
	struct ring *ring = record->ring;
	long head;

	for (;;) {
		if (local_read(&ring->nested) > 1) {
			/* The one that this has interrupted shows it. */
			local_dec(&ring->nested);
			break;
		}
		head = local_read(&ring->head);
		smp_store_release(&ring->page->data_head, head);
		local_dec(&ring->nested);
		barrier();
		/* A record that came between the two did not show itself. */
		if (likely(local_read(&ring->head) == head))
			break;
		local_inc(&ring->nested);
	}
	preempt_enable();
}

struct who rings_who(struct rings *rings, struct task_struct *task)
{
	return (struct who){ task_tgid_nr_ns(task, rings->pids), task_pid_nr_ns(task, rings->pids) };
}

/*
 * The kernel's frames from the interrupted one on, of which those of the interrupt's handler are taken away.
 * Returns how many, and has the first at `from`.
 */
static u32 kernel_stack(struct pt_regs *regs, unsigned long *frames, u32 *from)
{
	u32 len = stack_trace_save(frames, MAX_KERNEL_FRAMES, 0), at;

	for (at = 0; at < len; at++)
		if (frames[at] == regs->ip)
			break;
	if (at == len) {
		/* Too deep in handlers: the interrupted instruction alone. */
		frames[0] = regs->ip;
		at = 0;
		len = 1;
	}
	*from = at;
	return len - at;
}

static void put_chain(struct rings *rings, struct who who, struct pt_regs *regs, u64 period, u64 cookie,
		      const unsigned long *frames, u32 len)
{
	u64 chain = (len ? 1 + len : 0) + (cookie ? 2 : 0), words = 7 + chain;
	struct record record;
	u32 at;

	if (begin(&record, rings, who, words)) {
		put_header(&record, PERF_RECORD_SAMPLE,
			   user_mode(regs) ? PERF_RECORD_MISC_USER : PERF_RECORD_MISC_KERNEL, words);
		put(&record, regs->ip);
		put_sample_id(&record, who);
		put(&record, period);
		put(&record, chain);
		if (len)
			put(&record, PERF_CONTEXT_KERNEL);
		for (at = 0; at < len; at++)
			put(&record, frames[at]);
		if (cookie) {
			put(&record, CONTEXT_USER_DEFERRED);
			put(&record, cookie);
		}
	}
	end(&record);
}

/* With the kernel's stack, for which samples of user code need no room. */
static noinline void put_kernel_sample(struct rings *rings, struct who who, struct pt_regs *regs, u64 period, u64 cookie)
{
	unsigned long frames[MAX_KERNEL_FRAMES];
	u32 from, len = kernel_stack(regs, frames, &from);

	put_chain(rings, who, regs, period, cookie, frames + from, len);
}

void put_sample(struct rings *rings, struct who who, struct pt_regs *regs, u64 period, u64 cookie)
{
	if (user_mode(regs))
		put_chain(rings, who, regs, period, cookie, NULL, 0);
	else
		put_kernel_sample(rings, who, regs, period, cookie);
}

void put_stack(struct rings *rings, struct who who, const struct unwind_delivery *delivery)
{
	const struct unwind_stack *stack = &delivery->stack;
	u64 chain = rings->tells_ends + stack->frames, words = 3 + chain + SAMPLE_ID_WORDS;
	struct record record;

	if (begin(&record, rings, who, words)) {
		put_header(&record, RECORD_STACK, PERF_RECORD_MISC_USER, words);
		put(&record, delivery->cookie);
		put(&record, chain);
		if (rings->tells_ends)
			put(&record, delivery->sample | stack->end << 8 | stack->complete << 16 | stack->retryable << 17);
		put_all(&record, stack->pcs, stack->frames);
		put_sample_id(&record, who);
	}
	end(&record);
}
