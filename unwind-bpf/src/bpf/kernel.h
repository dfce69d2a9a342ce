// SPDX-License-Identifier: MIT OR GPL-2.0
//
// What the program uses of the kernel: types with the fields that are read, whose places the kernel
// fills in when it loads the program, helpers by their numbers, and functions.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]
#define __noinline __attribute__((noinline))
#define __always_inline inline __attribute__((always_inline))
#define __ksym __attribute__((section(".ksyms")))
#define __weak __attribute__((weak))
#define barrier() asm volatile("" ::: "memory")

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_ARRAY_OF_MAPS 12
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_NO_PREALLOC 1
#define BPF_F_MMAPABLE (1 << 10)
#define BPF_F_INNER_MAP (1 << 12)
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_RING_SIZE 1

#define PF_EXITING 0x4
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000
#define VM_EXEC 4
#define TMPFS 0x01021994
#define BTRFS 0x9123683e
#define FUSE 0x65735546
#define EBUSY 16
#define SIGSTOP 19
#define EOPNOTSUPP 95
#define PAGE 4096ull
// The code segment of 32-bit programs.
#define CODE_32_BIT 0x23

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
	struct block_device *s_bdev;
};
struct inode {
	unsigned long i_ino;
	s64 i_size;
	u32 i_generation;
	struct super_block *i_sb;
};
// When its contents were changed, as Linux has it to 6.5, to 6.10, and from then on.
struct timespec64 {
	s64 tv_sec;
	long tv_nsec;
};
struct inode___to_6_5 {
	struct timespec64 i_mtime;
};
struct inode___to_6_10 {
	struct timespec64 __i_mtime;
};
struct inode___numbers {
	s64 i_mtime_sec;
	u32 i_mtime_nsec;
};
struct file {
	struct inode *f_inode;
};
typedef struct {
	void *vdso;
} mm_context_t;
struct mm_struct {
	mm_context_t context;
};
// The count of changes of the mappings, as Linux has it to 6.12 and from 6.13 on.
struct mm_struct___count {
	s32 mm_lock_seq;
};
struct seqcount {
	u32 sequence;
};
typedef struct seqcount seqcount_t;
struct mm_struct___sequence {
	seqcount_t mm_lock_seq;
};
// Empty where the kernel has no userfaultfd.
struct vm_userfaultfd_ctx {
	void *ctx;
};
struct vm_area_struct {
	unsigned long vm_start, vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
	struct vm_userfaultfd_ctx vm_userfaultfd_ctx;
};
typedef struct {
	s32 counter;
} atomic_t;
struct signal_struct {
	atomic_t live;
};
struct ns_common {
	u32 inum;
};
struct pid_namespace {
	struct ns_common ns;
};
struct upid {
	s32 nr;
	struct pid_namespace *ns;
};
// The numbers of a task, from the first namespace to its own.
struct pid {
	u32 level;
	struct upid numbers[1];
};
struct thread_struct {
	unsigned long fsbase;
};
struct task_struct {
	u32 flags;
	s32 pid, tgid;
	u64 start_time;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct signal_struct *signal;
	struct thread_struct thread;
};
struct perf_event {
	struct perf_event *parent;
	u64 bpf_cookie;
};
struct bpf_perf_event_data_kern {
	struct perf_event *event;
};

#pragma clang attribute pop

struct pt_regs;
struct bpf_map;
struct bpf_task_work {
	u64 opaque;
} __attribute__((aligned(8)));
struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));
struct bpf_dynptr {
	u64 opaque[2];
} __attribute__((aligned(8)));

// What a program of a perf event gets: fields of 8 bytes, in this order on x86-64.
struct bpf_perf_event_data {
	u64 regs[21];
	u64 sample_period;
	u64 addr;
};
#define REGISTERS 21
enum {
	R15, R14, R13, R12, BP, BX, R11, R10, R9, R8, AX, CX, DX, SI, DI, ORIG_AX, IP, CS, FLAGS, SP, SS,
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_get_stack)(void *ctx, void *buf, u32 size, u64 flags) = (void *)67;
static long (*const bpf_send_signal)(u32 signal) = (void *)109;
static long (*const bpf_probe_read_user)(void *dst, u32 size, const void *from) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *dst, u32 size, const void *from) = (void *)113;
static long (*const bpf_ringbuf_output)(void *ringbuf, void *data, u64 size,
					u64 flags) = (void *)130;
static u64 (*const bpf_ringbuf_query)(void *ringbuf, u64 flags) = (void *)134;
static void *(*const bpf_ringbuf_reserve)(void *ringbuf, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static long (*const bpf_copy_from_user)(void *dst, u32 size, const void *from) = (void *)148;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const bpf_find_vma)(struct task_struct *task, u64 addr, void *callback, void *data,
				  u64 flags) = (void *)180;
static long (*const bpf_ringbuf_reserve_dynptr)(void *ringbuf, u32 size, u64 flags,
						struct bpf_dynptr *ptr) = (void *)198;
static void (*const bpf_ringbuf_submit_dynptr)(struct bpf_dynptr *ptr, u64 flags) = (void *)199;
static void (*const bpf_ringbuf_discard_dynptr)(struct bpf_dynptr *ptr, u64 flags) = (void *)200;
static void *(*const bpf_dynptr_data)(const struct bpf_dynptr *ptr, u32 offset,
				      u32 len) = (void *)203;

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym;

// Runs the callback in the task before it returns to user code. Linux has it from 6.18 on, there with
// a last argument that later ones fill in.
typedef int (*bpf_task_work_callback_t)(struct bpf_map *map, void *key, void *value);
extern int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work,
					      void *map, bpf_task_work_callback_t callback,
					      void *aux) __ksym __weak;
extern int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work,
					 void *map, bpf_task_work_callback_t callback) __ksym __weak;

// A pointer through which fields are read only. Through others, each pointer that is read takes the verifier
// some searches of all names of the kernel's types: half of what loading takes.
#define to_read(type, pointer) ((type *)bpf_rdonly_cast(pointer, __builtin_btf_type_id(*(type *)0, 1)))
#define current_task() to_read(struct task_struct, bpf_get_current_task_btf())
#define exists(function) (!!(const void *)(function))
#define has_field(field) __builtin_preserve_field_info(field, 2)

// A loop of at most `end` rounds, whose body the verifier looks at once. A round leaves it by `break`.
#define begin_loop(it, end) bpf_iter_num_new(&(it), 0, (end))
#define next_round(it, i) ({ int *at = bpf_iter_num_next(&(it)); if (at) (i) = *at; at; })
#define end_loop(it) bpf_iter_num_destroy(&(it))
