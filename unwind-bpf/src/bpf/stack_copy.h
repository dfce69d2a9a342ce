// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Copies of stacks, for a walk outside.
#pragma once

#include "frames.h"

// How many pages there are from the stack pointer on, as far as they are copied.
static __always_inline u32 pages_from(u64 sp, u32 most)
{
	struct bpf_iter_num it;
	u32 i = 0, pages = 0;

	begin_loop(it, COPY_PAGES);
	while (next_round(it, i)) {
		u64 at = i ? (sp & ~(PAGE - 1)) + i * PAGE : sp;
		u8 byte;

		if (i >= most || (bpf_probe_read_user(&byte, 1, (void *)at) && !bring_in(at, 1)))
			break;
		pages = i + 1;
	}
	end_loop(it);
	return pages;
}

// How many pages may be copied: few once copies fill the ring, and none when the samples that come meanwhile
// would have no room.
static __always_inline u32 most_pages(void)
{
	u64 full = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	u64 size = bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE);

	return full < size / 2 ? COPY_PAGES : full < size / 4 * 3 ? FEW_PAGES : 0;
}

// Copies the registers and the stack for a walk outside.
static __always_inline void copy(const u64 *registers, u64 cookie, u32 end)
{
	u64 sp = registers[SP], first = PAGE - (sp & (PAGE - 1));
	u32 i = 0, pages, most = most_pages(), is_over = 0;
	struct copy_record *record;
	struct bpf_iter_num it;
	struct bpf_dynptr ptr;

	if (!most) {
		put_no_stack(cookie, END_FULL);
		return;
	}
	pages = pages_from(sp, most);
	if (bpf_ringbuf_reserve_dynptr(&ring, sizeof(*record) + pages * PAGE, 0, &ptr)) {
		bpf_ringbuf_discard_dynptr(&ptr, 0);
		count(COUNT_DROPPED_STACKS);
		return;
	}
	record = bpf_dynptr_data(&ptr, 0, sizeof(*record));
	if (!record) {
		bpf_ringbuf_discard_dynptr(&ptr, 0);
		return;
	}
	put_head(&record->head, RECORD_COPY, cookie);
	__builtin_memcpy(record->registers, registers, sizeof(record->registers));
	record->head.end = end;
	if ((registers[CS] & 0xffff) == CODE_32_BIT)
		record->head.flags = COPY_IS_32_BIT;
	if (pages == most)
		record->head.flags |= COPY_IS_CUT;
	begin_loop(it, COPY_PAGES);
	while (next_round(it, i)) {
		u64 done = i ? first + (i - 1) * PAGE : 0;
		u64 len = i ? PAGE : first;
		void *page;

		if (i >= pages || is_over || len > PAGE)
			break;
		page = bpf_dynptr_data(&ptr, sizeof(*record) + done, PAGE);
		if (!page)
			break;
		// The pages are there by now. One that has gone again is not waited for: the reader of the ring
		// stops before a record that is not yet written.
		if (bpf_probe_read_user(page, len, (void *)(sp + done)))
			is_over = 1;
		else
			record->head.count = done + len;
	}
	end_loop(it);
	bpf_ringbuf_submit_dynptr(&ptr, BPF_RB_NO_WAKEUP);
	count(COUNT_COPIED);
}
