// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Memory of the task. What is absent is waited for only if the kernel itself brings it in: while a callback
// waits, the kernel can free nothing of any BPF program and end no uprobe, and the program stays there.
#pragma once

#include "kernel.h"

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

static __always_inline long read(const int may_sleep, void *to, u32 len, u64 from)
{
	long error = bpf_probe_read_user(to, len, (void *)from);

	if (!error || !may_sleep || !may_fault || !is_waited_for(from) || !is_waited_for(from + len - 1))
		return error;
	return bpf_copy_from_user(to, len, (void *)from);
}
