// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Memory, the ring, and the rest that the program calls.
#pragma once

// Memory: a stack of frames of 16 bytes.
static long read_memory(void *to, u32 size, u64 from)
{
	u64 end = STACK + current->depth * 16 + 4096, at;

	if (from < STACK || from + size > end)
		return -14;
	memset(to, 0, size);
	for (at = (from + 7) & ~7ull; at + 8 <= from + size; at += 8)
		if (at & 8)
			*(u64 *)((char *)to + (at - from)) =
				CODE + ((at - STACK) / 16 + 2 < current->depth ? 0x101 : 0x801);
	return 0;
}

static long read_resident(void *to, u32 size, void *from)
{
	interrupt();
	return is_absent && (is_in_sample || !is_brought_in) ? -14 : read_memory(to, size, (u64)from);
}

static long read_any(void *to, u32 size, void *from)
{
	interrupt();
	is_brought_in = 1;
	return read_memory(to, size, (u64)from);
}

static long read_kernel(void *to, u32 size, void *from)
{
	interrupt();
	memcpy(to, from, size);
	return 0;
}

static struct super_block device = { 1, 0, 0 };
static struct inode inode_of_code = { 7, 0x1000, 0, &device };

static long find_vma(struct task_struct *task, u64 at, void *callback, void *data, u64 flags)
{
	struct file file = { &inode_of_code };
	struct vm_area_struct vma = { CODE, CODE + 0x1000, task->mm, VM_EXEC, 0, &file };
	struct vm_area_struct stack = { STACK, CODE, task->mm };

	interrupt();
	if (at >= STACK)
		vma = stack;
	else if (at - CODE >= 0x1000)
		return -ENOENT;
	((long (*)(void *, void *, void *))callback)(task, &vma, data);
	return 0;
}

// The ring: a line for each record, also for one for which there is no room.
static void print(struct record_head *head, u64 pc, u32 is_lost)
{
	static char *kinds[] = { "", "sample", "stack", "copy", "wanted" };

	printf("%s %u %llu %u %u %u %u %llu\n", kinds[head->kind], is_lost, head->cookie, head->tid,
	       head->flags, head->end, head->count, pc);
}

static long output(void *ring, void *data, u64 size, u64 flags)
{
	struct record_head *head = data;
	u32 is_lost = head->kind == RECORD_SAMPLE ? is_full_of_samples : is_full_of_stacks;
	u64 pc = head->kind == RECORD_SAMPLE ? ((struct sample_record *)data)->pc :
		 head->count ? ((struct stack_record *)data)->pcs[0] : 0;

	interrupt();
	print(head, pc, is_lost);
	interrupt();
	return is_lost ? -ENOMEM : 0;
}

static void *reserve(void *ring, u64 size, u64 flags)
{
	return calloc(1, size);
}

static void submit(void *data, u64 flags)
{
	free(data);
}

static long reserve_dynptr(void *ring, u32 size, u64 flags, struct bpf_dynptr *ptr)
{
	struct record_head head = { RECORD_COPY };

	interrupt();
	ptr->opaque[0] = is_full_of_stacks ? 0 : (u64)calloc(1, size);
	ptr->opaque[1] = size;
	if (is_full_of_stacks)
		print(&head, 0, 1);
	return is_full_of_stacks ? -ENOMEM : 0;
}

static void *dynptr_data(struct bpf_dynptr *ptr, u32 offset, u32 len)
{
	interrupt();
	return offset + len > ptr->opaque[1] ? 0 : (char *)ptr->opaque[0] + offset;
}

static void submit_dynptr(struct bpf_dynptr *ptr, u64 flags)
{
	struct copy_record *record = (void *)ptr->opaque[0];

	interrupt();
	print(&record->head, record->registers[IP], 0);
	free(record);
	interrupt();
}

static void discard_dynptr(struct bpf_dynptr *ptr, u64 flags)
{
	free((void *)ptr->opaque[0]);
}

// The rest of the helpers.
static struct task_struct *the_task(void)
{
	return &current->task;
}

static long registers_of(struct task_struct *task)
{
	return (long)((struct simulated *)task)->registers;
}

static u64 now(void)
{
	return ++clock_ns;
}

static u32 this_cpu(void)
{
	return cpu;
}

struct bpf_perf_event_data_kern *kernels(void)
{
	static struct perf_event event;
	static struct bpf_perf_event_data_kern data = { .event = &event };

	event.bpf_cookie = is_waiting ? waits : 0;
	return &data;
}

static long kernel_stack(void *context, void *to, u32 size, u64 flags)
{
	return 16;
}

static long send_signal(u32 signal)
{
	return 0;
}

struct loop {
	int at, end;
};

int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end)
{
	struct loop *loop = malloc(sizeof(*loop) + sizeof(int));

	loop->at = start;
	loop->end = end;
	it->opaque[0] = (u64)loop;
	return 0;
}

int *bpf_iter_num_next(struct bpf_iter_num *it)
{
	struct loop *loop = (struct loop *)it->opaque[0];
	int *i = (int *)(loop + 1);

	if (loop->at >= loop->end)
		return 0;
	*i = loop->at++;
	return i;
}

void bpf_iter_num_destroy(struct bpf_iter_num *it)
{
	free((void *)it->opaque[0]);
}

static u64 query(void *ringbuf, u64 flags)
{
	return flags == BPF_RB_RING_SIZE ? 1 << 20 : 0;
}

static void set_helpers(void)
{
	bpf_map_lookup_elem = lookup;
	bpf_map_update_elem = update;
	bpf_map_delete_elem = delete;
	bpf_ktime_get_ns = now;
	bpf_get_smp_processor_id = this_cpu;
	bpf_get_stack = kernel_stack;
	bpf_send_signal = send_signal;
	bpf_probe_read_user = read_resident;
	bpf_probe_read_kernel = read_kernel;
	bpf_ringbuf_output = output;
	bpf_ringbuf_query = query;
	bpf_ringbuf_reserve = reserve;
	bpf_ringbuf_submit = submit;
	bpf_copy_from_user = read_any;
	bpf_get_current_task_btf = the_task;
	bpf_task_pt_regs = registers_of;
	bpf_find_vma = find_vma;
	bpf_ringbuf_reserve_dynptr = reserve_dynptr;
	bpf_ringbuf_submit_dynptr = submit_dynptr;
	bpf_ringbuf_discard_dynptr = discard_dynptr;
	bpf_dynptr_data = dynptr_data;
}
