// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What is known of the code of an address space: found when a walk first meets it, forgotten when it is unmapped.
 */
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "module.h"
#include "tasks.h"

/* Of walk_memory_take. */
static atomic_t walks = ATOMIC_INIT(0);
/* Spaces that there are: the module's code is called until the last of them is freed. */
static atomic_t spaces = ATOMIC_INIT(0);

static void tables_free(struct kref *users)
{
	struct tables *tables = container_of(users, struct tables, users);
	u32 at;

	for (at = 0; at < tables->len; at++) {
		fput(tables->each[at].file);
		vfree(tables->each[at].bytes);
	}
	kvfree(tables);
}

void tables_put(struct tables *tables)
{
	kref_put(&tables->users, tables_free);
}

/* ---- the life of a space, which the memory of the task leads ---- */

static struct mmu_notifier *space_alloc(struct mm_struct *mm)
{
	struct space *space = kvzalloc(sizeof(*space), GFP_KERNEL);
	struct session *now;

	if (!space)
		return ERR_PTR(-ENOMEM);
	atomic_inc(&spaces);
	spin_lock_init(&space->lock);
	unwind_space_init(&space->modules, sizeof(space->bytes));
	rcu_read_lock();
	now = rcu_dereference(session);
	if (now) {
		space->tables = now->tables;
		kref_get(&space->tables->users);
	}
	rcu_read_unlock();
	return &space->notifier;
}

/* When no walk uses it. May not sleep. */
static void space_free(struct mmu_notifier *notifier)
{
	struct space *space = container_of(notifier, struct space, notifier);

	if (space->tables)
		tables_put(space->tables);
	kvfree(space->idle);
	kvfree(space);
	atomic_dec(&spaces);
}

static int space_unmap(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct space *space = container_of(notifier, struct space, notifier);

	if (range->event == MMU_NOTIFY_UNMAP) {
		spin_lock(&space->lock);
		space->unmaps++;
		unwind_space_remove(&space->modules, range->start, range->end);
		spin_unlock(&space->lock);
	}
	return 0;
}

static const struct mmu_notifier_ops space_ops = {
	.alloc_notifier = space_alloc,
	.free_notifier = space_free,
	.invalidate_range_start = space_unmap,
};

/*
 * That of `mm`, which is the task's: the same one for all its tasks. NULL: there is no memory, or a signal is pending
 * when it is made. May sleep.
 */
struct space *space_get(struct mm_struct *mm)
{
	struct mmu_notifier *notifier = mmu_notifier_get(&space_ops, mm);

	return IS_ERR(notifier) ? NULL : container_of(notifier, struct space, notifier);
}

void space_put(struct space *space)
{
	mmu_notifier_put(&space->notifier);
}

/* Before a walk: what was found without a table that has been handed in since is looked for again. */
void space_follow_tables(struct space *space)
{
	u32 len = space->tables ? smp_load_acquire(&space->tables->len) : 0;

	if (likely(READ_ONCE(space->tables_seen) == len))
		return;
	spin_lock(&space->lock);
	unwind_space_clear(&space->modules);
	WRITE_ONCE(space->tables_seen, len);
	spin_unlock(&space->lock);
}

/* No task has one. */
void spaces_end(void)
{
	mmu_notifier_synchronize();
	/* That has waited for readers, and not for what they have led to on all CPUs. */
	while (atomic_read(&spaces))
		msleep(1);
	synchronize_rcu();
}

/* ---- memory of walks ---- */

struct walk_memory *walk_memory_take(struct space *space)
{
	struct walk_memory *memory;

	if (atomic_inc_return(&walks) > MAX_WALKS)
		goto refused;
	memory = xchg(&space->idle, NULL);
	if (memory)
		return memory;
	/* A program whose walks wait for what it does itself has not all of them. */
	if (atomic_inc_return(&space->memories) > MAX_WALKS_OF_SPACE)
		goto of_space;
	/* Of a power of two, so that it is aligned to what it has to be. */
	memory = kvzalloc(roundup_pow_of_two(sizeof(*memory)), GFP_KERNEL | __GFP_NOWARN);
	if (memory) {
		unwind_trace_init(&memory->trace, sizeof(memory->bytes));
		return memory;
	}
of_space:
	atomic_dec(&space->memories);
refused:
	atomic_dec(&walks);
	return NULL;
}

void walk_memory_give(struct space *space, struct walk_memory *memory)
{
	if (cmpxchg(&space->idle, NULL, memory)) {
		kvfree(memory);
		atomic_dec(&space->memories);
	}
	atomic_dec(&walks);
}

/* ---- what walks ask ---- */

/* Where the file of a mapping is mapped from its begin on, a few mappings below: its ELF header is there. */
static void find_header(struct mapping *mapping, struct vm_area_struct *vma)
{
	struct file *file = vma->vm_file;
	VMA_ITERATOR(at, vma->vm_mm, vma->vm_start);
	u32 left;

	for (left = MAX_MAPPINGS_BELOW; vma && left; left--) {
		if (!vma->vm_pgoff && vma->vm_file && file_inode(vma->vm_file) == file_inode(file)) {
			mapping->header = vma->vm_start;
			mapping->header_end = vma->vm_end;
			return;
		}
		vma = vma_prev(&at);
	}
}

static bool mapping_at(u64 pc, struct mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool is_code = false;

	if (mmap_read_lock_killable(mm))
		return false;
	vma = find_vma(mm, pc);
	if (vma && vma->vm_start <= pc && vma->vm_flags & VM_EXEC) {
		is_code = true;
		mapping->header = mapping->header_end = 0;
		mapping->file = vma->vm_file ? get_file(vma->vm_file) : NULL;
		mapping->start = vma->vm_start;
		mapping->end = vma->vm_end;
		mapping->offset = vma->vm_file ? (u64)vma->vm_pgoff << PAGE_SHIFT : 0;
		if (vma->vm_file) {
			find_header(mapping, vma);
		} else {
			mapping->header = vma->vm_start;
			mapping->header_end = vma->vm_end;
		}
	}
	mmap_read_unlock(mm);
	return is_code;
}

/* Whether it is of a mapping that is there, with the tables that there are: then it is kept, or `error` says why not. */
static bool keep(struct space *space, const struct unwind_module *module, u64 unmaps, u32 tables, int *error)
{
	bool is_current;

	spin_lock(&space->lock);
	is_current = space->unmaps == unmaps && space->tables_seen == tables;
	if (is_current) {
		/* One that has grown since. */
		unwind_space_remove(&space->modules, module->start, module->end);
		*error = unwind_space_add(&space->modules, module);
		if (*error == UNWIND_ERROR_FULL) {
			unwind_space_clear(&space->modules);
			*error = unwind_space_add(&space->modules, module);
		}
	}
	spin_unlock(&space->lock);
	return is_current;
}

int32_t unwind_host_find_module(void *context, uint64_t pc)
{
	struct task *task = context;
	struct space *space = task->space;
	struct unwind_module module;
	struct mapping mapping;
	u64 unmaps;
	u32 tables;
	int error;

	do {
		unmaps = smp_load_acquire(&space->unmaps);
		tables = READ_ONCE(space->tables_seen);
		if (task->searches >= MAX_SEARCHES || !mapping_at(pc, &mapping))
			return 0;
		task->searches++;
		module = (struct unwind_module){ .start = mapping.start, .end = mapping.end };
		program_look(&mapping, space->tables, &module);
		if (mapping.file)
			fput(mapping.file);
	} while (!keep(space, &module, unmaps, tables, &error));
	return !error;
}

/* Of tables, which may be read for long. */
static noinline int32_t read_bytes(void *to, u64 addr, size_t len)
{
	cond_resched();
	if (fatal_signal_pending(current))
		return UNWIND_READ_INVALID;
	/* Not copy_from_user: its check of `to` follows frame pointers, which the library does not keep. */
	return _copy_from_user(to, (void __user *)addr, len) ? UNWIND_READ_INVALID : UNWIND_READ_DONE;
}

int32_t unwind_host_read(void *context, void *to, uint64_t addr, size_t len)
{
	u64 word;

	if (unlikely(len != sizeof(word)))
		return read_bytes(to, addr, len);
	if (get_user(word, (u64 __user *)addr))
		return UNWIND_READ_INVALID;
	memcpy(to, &word, sizeof(word));
	return UNWIND_READ_DONE;
}

/* No walk here is without faults. */
int32_t unwind_host_read_nofault(void *context, void *to, uint64_t addr, size_t len)
{
	return UNWIND_READ_ABSENT;
}
