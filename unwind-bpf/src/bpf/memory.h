// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Memory of the task. What is absent is waited for only if the kernel itself brings it in: while a callback
// waits, the kernel can free nothing of any BPF program and end no uprobe, and the program stays there.
#pragma once

#include "image.h"

static long on_absent(struct task_struct *task, struct vm_area_struct *vma, u32 *is_waited_for)
{
	struct file *file = vma->vm_file;
	struct super_block *files;

	// Another program, or another thread of this one, would bring it in.
	if (has_field(vma->vm_userfaultfd_ctx.ctx) && vma->vm_userfaultfd_ctx.ctx)
		return 0;
	if (!file) {
		*is_waited_for = 1;
		return 0;
	}
	// Files of a server have no block device, or are of FUSE; memory has none, and btrfs several.
	files = file->f_inode->i_sb;
	*is_waited_for = files->s_magic == TMPFS || files->s_magic == BTRFS ||
			 (files->s_bdev && files->s_magic != FUSE);
	return 0;
}

// Whether the kernel itself brings in what is absent at an address.
__noinline int is_waited_for(u64 at)
{
	u32 is_it = 0;

	bpf_find_vma(bpf_get_current_task_btf(), at, on_absent, &is_it, 0);
	return is_it;
}

// Waits for memory. Returns whether it is there now.
static __always_inline int bring_in(u64 at, u32 len)
{
	u64 last = at + len - 1;
	u8 byte;

	return may_fault && is_waited_for(at) && is_waited_for(last) &&
	       !bpf_copy_from_user(&byte, 1, (void *)at) && !bpf_copy_from_user(&byte, 1, (void *)last);
}

// Reads what is resident.
static __always_inline int read(struct walk *w, void *to, u32 len, u64 from)
{
	if (!bpf_probe_read_user(to, len, (void *)from))
		return 0;
	w->absent = from;
	w->absent_len = len;
	return END_MEMORY;
}

// Reads one or two words of 4 or 8 bytes from the stack, most often from the part that was read.
static __always_inline int read_stack(struct walk *w, struct stack_part *part, struct words *words, u64 from,
				      u32 len)
{
	u64 at = from - part->at;
	u32 rest = PAGE - (from & (PAGE - 1));

	if (at >= part->len || at + len > part->len) {
		if (rest < len)
			return len <= sizeof(*words) ? read(w, words, len, from) : END_RULE;
		if (rest > STACK_PART)
			rest = STACK_PART;
		part->len = 0;
		if (read(w, part->bytes, rest, from))
			return END_MEMORY;
		part->at = from;
		part->len = rest;
		at = 0;
	}
	at &= STACK_PART - 1;
	words->first = *(u64 *)(part->bytes + at);
	words->second = *(u64 *)(part->bytes + at + 8);
	if (len == 4)
		words->first = (u32)words->first;
	return 0;
}
