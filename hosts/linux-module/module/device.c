// SPDX-License-Identifier: MIT OR GPL-2.0
/* /dev/unwind, and what is asked for there: see unwind_device.h. */
#include <linux/capability.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "module.h"

struct session __rcu *session;
DEFINE_PER_CPU(struct unwind_counts, counts);

/* Of the session, but for what is read in samples and walks. */
static DEFINE_MUTEX(lock);
static unsigned long is_open;

#define ALL_FLAGS                                                                                                      \
	(UNWIND_SETUP_FREQUENCY | UNWIND_SETUP_ON_EXEC | UNWIND_SETUP_USER_ONLY | UNWIND_SETUP_TELL_ENDS |             \
	 UNWIND_SETUP_AWAIT_TABLES)

static void on_sample(struct perf_event *event, struct perf_sample_data *data, struct pt_regs *regs)
{
	struct session *of = event->overflow_handler_context;

	task_sample(&of->rings, regs, event->hw.last_period);
}

static void session_free(struct session *of)
{
	rings_free(&of->rings);
	if (of->tables)
		tables_put(of->tables);
	kvfree(of);
}

/* Whether it counts what the CPU does. A period of another type may be a time: clocks have types of their own, too. */
static bool is_of_hardware(u32 type)
{
	return type == PERF_TYPE_HARDWARE || type == PERF_TYPE_HW_CACHE || type == PERF_TYPE_RAW;
}

static long setup(struct unwind_setup *wanted)
{
	bool is_rate = wanted->flags & UNWIND_SETUP_FREQUENCY;
	struct session *of;
	int error = -ENOMEM;

	if (rcu_access_pointer(session))
		return -EBUSY;
	if (wanted->version != UNWIND_DEVICE_VERSION)
		return -EPROTONOSUPPORT;
	if (wanted->flags & ~ALL_FLAGS)
		return -EINVAL;
	if (wanted->type == PERF_TYPE_TRACEPOINT ||
	    wanted->type == PERF_TYPE_BREAKPOINT || !wanted->value || wanted->value >> 63 ||
	    (is_rate ? wanted->value > MAX_HERTZ :
		       !is_of_hardware(wanted->type) && wanted->value < MIN_CLOCK_PERIOD_NS))
		return -EINVAL;
	of = kvzalloc(sizeof(*of), GFP_KERNEL);
	if (!of)
		return error;
	of->tables = kvzalloc(sizeof(*of->tables), GFP_KERNEL);
	if (!of->tables)
		goto out;
	kref_init(&of->tables->users);
	of->rings.tells_ends = wanted->flags & UNWIND_SETUP_TELL_ENDS;
	of->tables->are_awaited = wanted->flags & UNWIND_SETUP_AWAIT_TABLES;
	error = rings_make(&of->rings, wanted->ring_bytes);
	if (error)
		goto out;
	of->attr = (struct perf_event_attr){
		.type = wanted->type,
		.size = sizeof(of->attr),
		.config = wanted->config,
		.sample_period = wanted->value,
		.freq = is_rate,
		.inherit = 1,
		.disabled = !!(wanted->flags & UNWIND_SETUP_ON_EXEC),
		.enable_on_exec = !!(wanted->flags & UNWIND_SETUP_ON_EXEC),
		.exclude_kernel = !!(wanted->flags & UNWIND_SETUP_USER_ONLY),
		.exclude_hv = 1,
		.exclude_guest = 1,
	};
	wanted->stride = of->rings.stride;
	rcu_assign_pointer(session, of);
	return 0;
out:
	session_free(of);
	return error;
}

/* Whether the task, or else the CPU, has an event. */
static bool has_event(const struct session *of, const struct task_struct *task, int cpu)
{
	u32 at;

	for (at = 0; at < of->len; at++) {
		const struct perf_event *event = of->events[at];

		if (event->hw.target == task && (task || event->cpu == cpu))
			return true;
	}
	return false;
}

static long add(struct session *of, const struct unwind_add *what)
{
	struct perf_event_attr attr = of->attr;
	struct task_struct *task = NULL;
	struct perf_event *event;
	struct pid *pid;

	if (of->len == MAX_EVENTS)
		return -ENOSPC;
	if (what->tid > 0) {
		pid = find_get_pid(what->tid);
		task = get_pid_task(pid, PIDTYPE_PID);
		put_pid(pid);
		if (!task)
			return -ESRCH;
	} else if (attr.enable_on_exec) {
		return -EINVAL;
	} else {
		attr.inherit = 0;
	}
	if (has_event(of, task, what->cpu)) {
		if (task)
			put_task_struct(task);
		return -EEXIST;
	}
	event = perf_event_create_kernel_counter(&attr, task ? -1 : what->cpu, task, on_sample, of);
	if (task)
		put_task_struct(task);
	if (IS_ERR(event))
		return PTR_ERR(event);
	of->events[of->len++] = event;
	return 0;
}

static void stop(struct session *of)
{
	while (of->len)
		perf_event_release_kernel(of->events[--of->len]);
}

static long hand_in(struct tables *tables, const struct unwind_table *what)
{
	struct table *table = &tables->each[tables->len];
	struct file *file;

	if (tables->len == MAX_TABLES || what->bytes > MAX_TABLE_BYTES ||
	    what->bytes > MAX_ALL_TABLES_BYTES - tables->bytes)
		return -ENOSPC;
	file = fget(what->fd);
	if (!file)
		return -EBADF;
	/* The device itself would stay open. */
	if (!S_ISREG(file_inode(file)->i_mode)) {
		fput(file);
		return -EINVAL;
	}
	table->bytes = what->bytes ? vmalloc(what->bytes) : NULL;
	if (what->bytes && (!table->bytes || copy_from_user(table->bytes, (void __user *)what->table, what->bytes))) {
		long error = table->bytes ? -EFAULT : -ENOMEM;

		vfree(table->bytes);
		fput(file);
		return error;
	}
	table->file = file;
	table->len = what->bytes;
	table->address = what->address;
	tables->bytes += what->bytes;
	smp_store_release(&tables->len, tables->len + 1);
	return 0;
}

static long report(void __user *to)
{
	struct unwind_counts *sum = kzalloc(sizeof(*sum), GFP_KERNEL);
	long error;
	int cpu;
	u32 at;

	if (!sum)
		return -ENOMEM;
	for_each_possible_cpu(cpu)
		for (at = 0; at < sizeof(*sum) / sizeof(u64); at++)
			((u64 *)sum)[at] += READ_ONCE(((u64 *)per_cpu_ptr(&counts, cpu))[at]);
	error = copy_to_user(to, sum, sizeof(*sum)) ? -EFAULT : 0;
	kfree(sum);
	return error;
}

static long command(unsigned int number, void __user *from)
{
	struct session *of = rcu_dereference_protected(session, lockdep_is_held(&lock));
	union {
		struct unwind_setup setup;
		struct unwind_add add;
		struct unwind_table table;
	} in;
	long error;

	if (number == UNWIND_COUNTS)
		return report(from);
	if (_IOC_SIZE(number) > sizeof(in) || copy_from_user(&in, from, _IOC_SIZE(number)))
		return -EFAULT;
	if (number == UNWIND_SETUP) {
		error = setup(&in.setup);
		return !error && copy_to_user(from, &in.setup, sizeof(in.setup)) ? -EFAULT : error;
	}
	if (!of)
		return -EINVAL;
	if (number == UNWIND_ADD)
		return add(of, &in.add);
	if (number == UNWIND_TABLE)
		return hand_in(of->tables, &in.table);
	if (number == UNWIND_STOP) {
		stop(of);
		return 0;
	}
	return -ENOTTY;
}

static long device_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	long error;

	if (mutex_lock_interruptible(&lock))
		return -ERESTARTSYS;
	error = command(number, (void __user *)argument);
	mutex_unlock(&lock);
	return error;
}

static int device_mmap(struct file *file, struct vm_area_struct *vma)
{
	/* Not by the lock: an ioctl has that while it waits for the lock of mappings. It stays until the file is closed. */
	struct session *of = rcu_dereference_raw(session);

	return of ? rings_map(&of->rings, vma) : -EINVAL;
}

/* What perf asks of who samples others, and the kernel. */
static int device_open(struct inode *inode, struct file *file)
{
	if (!perfmon_capable())
		return -EACCES;
	/* Not by the lock, which an ioctl has while it reads memory that may come late. */
	return test_and_set_bit_lock(0, &is_open) ? -EBUSY : 0;
}

static int device_release(struct inode *inode, struct file *file)
{
	struct session *of = rcu_dereference_protected(session, true);

	if (of) {
		stop(of);
		rcu_assign_pointer(session, NULL);
		synchronize_rcu();
		tasks_forget_spaces();
		session_free(of);
	}
	clear_bit_unlock(0, &is_open);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = device_mmap,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "unwind",
	.fops = &operations,
	.mode = 0600,
};

static int __init unwind_load(void)
{
	int error = tasks_begin();

	if (error)
		return error;
#ifdef UNWIND_TEST_NMI
	error = test_nmi_begin();
	if (error) {
		tasks_end();
		return error;
	}
#endif
	error = misc_register(&device);
	if (error) {
#ifdef UNWIND_TEST_NMI
		test_nmi_end();
#endif
		tasks_end();
	}
	return error;
}

static void __exit unwind_unload(void)
{
	misc_deregister(&device);
#ifdef UNWIND_TEST_NMI
	test_nmi_end();
#endif
	tasks_end();
	spaces_end();
}

module_init(unwind_load);
module_exit(unwind_unload);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Samples with user stacks that are walked by SFrame and .eh_frame");
