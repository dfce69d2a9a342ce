// SPDX-License-Identifier: MIT OR GPL-2.0
//
// The code that a process has mapped: which file it is of, and whether there is a table of that.
#pragma once

#include "image.h"
#include "output.h"

#define MAX_SEGMENTS 4
#define MAX_MODULES 64

struct segment {
	u64 from, to; // bytes of the file
	u64 delta;    // added to a place in the file: its address there
};
struct code_file {
	u32 state;
	u32 image;
	u32 segments;
	u32 interpreter; // as a module has it
	struct segment segment[MAX_SEGMENTS];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FILES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct file_key);
	__type(value, struct code_file);
} files SEC(".maps");

// The modules of a process in which pcs were found. They hold while its mappings do not change.
struct space {
	u64 mm;
	u64 started;
	u32 mappings; // the kernel's count of changes
	u32 version;  // odd while somebody writes
	u32 modules;
	u32 v8; // the interpreter of a module that was found, as it has it
	struct module module[MAX_MODULES];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct space);
} spaces SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct space);
} empty_space SEC(".maps");

// Whether it is of the program that a task executes.
static __always_inline int is_of(struct space *space, struct task_struct *task)
{
	return space->mm == (u64)task->mm && space->started == task->group_leader->start_time;
}

static __always_inline u32 changes_of(struct mm_struct *mm)
{
	struct mm_struct___sequence *sequence = (void *)mm;
	struct mm_struct___count *counted = (void *)mm;

	if (has_field(sequence->mm_lock_seq.sequence))
		return sequence->mm_lock_seq.sequence;
	if (has_field(counted->mm_lock_seq))
		return counted->mm_lock_seq;
	return 0;
}

static __always_inline int are_changes_counted(void)
{
	struct mm_struct___sequence *sequence = 0;
	struct mm_struct___count *counted = 0;

	return has_field(sequence->mm_lock_seq.sequence) || has_field(counted->mm_lock_seq);
}

// Finds the module of an address among those of its process that are known.
__noinline int enter_known(struct walk *w, u64 pc)
{
	struct task_struct *task = current_task();
	struct space *space;
	struct bpf_iter_num it;
	u32 version, modules, i = 0, is_found = 0;

	if (!w)
		return END_WANTED;
	space = bpf_map_lookup_elem(&spaces, &w->tgid);
	if (!space || !task->mm || !is_of(space, task) || !are_changes_counted() ||
	    space->mappings != changes_of(task->mm))
		return END_WANTED;
	version = *(volatile u32 *)&space->version;
	modules = space->modules;
	begin_loop(it, MAX_MODULES);
	while (next_round(it, i)) {
		struct module *module = &space->module[i & (MAX_MODULES - 1)];

		if (i >= modules)
			break;
		if (pc - module->start < module->end - module->start) {
			w->module = *module;
			is_found = 1;
			break;
		}
	}
	end_loop(it);
	barrier();
	if (!is_found || version & 1 || *(volatile u32 *)&space->version != version) {
		w->module.start = w->module.end = 0;
		return END_WANTED;
	}
	return enter(w);
}

struct mapping {
	struct file_key file;
	u64 start, end, offset;
	u32 mappings;
	u32 is_code;
	u32 is_32_bit; // the code that is executed
	u32 unused;
};

static __always_inline u64 changed_at(struct inode *inode)
{
	struct inode___to_6_5 *first = (void *)inode;
	struct inode___to_6_10 *second = (void *)inode;
	struct inode___numbers *numbers = (void *)inode;

	if (has_field(numbers->i_mtime_sec))
		return numbers->i_mtime_sec * 1000000000 + numbers->i_mtime_nsec;
	if (has_field(second->__i_mtime))
		return second->__i_mtime.tv_sec * 1000000000 + second->__i_mtime.tv_nsec;
	if (has_field(first->i_mtime))
		return first->i_mtime.tv_sec * 1000000000 + first->i_mtime.tv_nsec;
	return 0;
}

static long on_mapping(struct task_struct *task, struct vm_area_struct *vma, struct mapping *found)
{
	struct mm_struct *mm = vma->vm_mm;
	struct file *file = vma->vm_file;
	struct inode *inode;

	found->start = vma->vm_start;
	found->end = vma->vm_end;
	found->offset = vma->vm_pgoff << 12;
	found->is_code = (vma->vm_flags & VM_EXEC) != 0;
	found->mappings = changes_of(mm);
	if (file) {
		inode = file->f_inode;
		found->file.inode = inode->i_ino;
		found->file.size = inode->i_size;
		found->file.changed = changed_at(inode);
		found->file.generation = inode->i_generation;
		found->file.device = inode->i_sb->s_dev;
	} else if ((u64)mm->context.vdso == vma->vm_start) {
		found->file.inode = VDSO;
		found->file.generation = found->is_32_bit;
		found->offset = 0;
	}
	return 0;
}

// Asks for the table of a file, once.
__noinline int want(struct mapping *mapping)
{
	struct wanted_record *record;
	u32 zero = 0;
	// Zeros, of which there is no room on the stack.
	void *nothing = bpf_map_lookup_elem(&empty_space, &zero);

	if (!mapping || !nothing ||
	    bpf_map_update_elem(&files, &mapping->file, nothing, BPF_NOEXIST))
		return 0;
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		bpf_map_delete_elem(&files, &mapping->file);
		return 0;
	}
	put_head(&record->head, RECORD_WANTED, 0);
	record->file = mapping->file;
	record->start = mapping->start;
	record->end = mapping->end;
	record->offset = mapping->offset;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

// Keeps the walk's module for the next samples of its process.
__noinline int remember(struct walk *w, u32 mappings)
{
	struct task_struct *task = current_task();
	struct space *space;
	u32 version, at;
	u32 zero = 0;

	if (!w || !task->mm || !are_changes_counted())
		return 0;
	space = bpf_map_lookup_elem(&spaces, &w->tgid);
	if (!space) {
		space = bpf_map_lookup_elem(&empty_space, &zero);
		if (space)
			bpf_map_update_elem(&spaces, &w->tgid, space, BPF_NOEXIST);
		space = bpf_map_lookup_elem(&spaces, &w->tgid);
		if (!space)
			return 0;
	}
	version = *(volatile u32 *)&space->version;
	if (version & 1 || __sync_val_compare_and_swap(&space->version, version, version + 1) != version)
		return 0;
	if (!is_of(space, task))
		space->v8 = 0;
	if (!is_of(space, task) || space->mappings != mappings) {
		space->mm = (u64)task->mm;
		space->started = task->group_leader->start_time;
		space->mappings = mappings;
		space->modules = 0;
	}
	if (w->module.interpreter & IS_V8)
		space->v8 = w->module.interpreter;
	at = space->modules;
	if (at < MAX_MODULES) {
		space->module[at & (MAX_MODULES - 1)] = w->module;
		space->modules = at + 1;
	}
	__sync_val_compare_and_swap(&space->version, version + 1, version + 2);
	return 0;
}

// Finds the module of an address among the mappings of its process.
__noinline int enter_mapped(struct walk *w, u64 pc)
{
	struct mapping found = {};
	struct code_file *file;
	struct bpf_iter_num it;
	long error;
	u32 i = 0, is_found = 0;

	if (!w)
		return END_NO_MAPPING;
	w->module.start = w->module.end = 0;
	found.is_32_bit = w->word == 4;
	error = bpf_find_vma(bpf_get_current_task_btf(), pc, on_mapping, &found, 0);
	if (error)
		return error == -EBUSY ? END_BUSY : END_NO_MAPPING;
	if (!found.is_code)
		return END_NO_MAPPING;
	if (!found.file.inode)
		return END_NO_FILE;
	file = bpf_map_lookup_elem(&files, &found.file);
	if (!file) {
		want(&found);
		return END_WANTED;
	}
	if (file->state != FILE_HAS_TABLE)
		return file->state == FILE_WANTED ? END_WANTED : END_NO_TABLE;
	begin_loop(it, MAX_SEGMENTS);
	while (next_round(it, i)) {
		struct segment *segment = &file->segment[i & (MAX_SEGMENTS - 1)];

		if (i >= file->segments)
			break;
		if (found.offset < segment->to && found.offset + (found.end - found.start) > segment->from) {
			w->module.bias = found.start - (found.offset + segment->delta);
			is_found = 1;
			break;
		}
	}
	end_loop(it);
	if (!is_found)
		return END_NO_TABLE;
	w->module.start = found.start;
	w->module.end = found.end;
	w->module.image = file->image;
	w->module.interpreter = file->interpreter;
	remember(w, found.mappings);
	return enter(w);
}

// Finds the module of an address among those that are known, or else among the mappings.
static __always_inline int enter_at(struct walk *w, u64 pc)
{
	int end = enter_known(w, pc);

	return end ? enter_mapped(w, pc) : 0;
}
