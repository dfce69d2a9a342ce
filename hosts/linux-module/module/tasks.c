// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A sample asks for the stack of its task, also in an NMI; a task work, on the task's way back to user code, has it
 * walked. There is no hook of the last instruction before user code, and none is needed: each request queues a
 * work, so a kernel entry in which something was asked for ends with that work.
 */
#include <linux/binfmts.h>
#include <linux/hash.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

#include "module.h"
#include "tasks.h"

#ifdef PF_USER_WORKER
#define USER_WORKER (PF_IO_WORKER | PF_USER_WORKER)
#else
#define USER_WORKER PF_IO_WORKER
#endif

#define PLACES (MAX_TASKS / TASKS_NEAR)

/*
 * A task has one of the places that are near its hash. What a place has beside the key is made anew when it is taken,
 * so that giving it back is one store; the lowest bit of the key is set meanwhile.
 */
static unsigned long *keys;
static struct task *tasks;
static u64 client;
static DEFINE_PER_CPU(int, taking);

#define IS_BEING_TAKEN 1ul

static void irq_work_entry(struct irq_work *irq);

static u32 first_near(struct task_struct *of)
{
	return hash_ptr(of, ilog2(PLACES)) * TASKS_NEAR;
}

static struct task *task_find(struct task_struct *of)
{
	u32 first = first_near(of), at;

	for (at = first; at < first + TASKS_NEAR; at++)
		if (smp_load_acquire(&keys[at]) == (unsigned long)of)
			return &tasks[at];
	return NULL;
}

bool task_is_known(struct task_struct *of)
{
	return task_find(of) != NULL;
}

static void task_make(struct task *task, struct task_struct *of)
{
	memset(task, 0, sizeof(*task));
	task->task = of;
	init_task_work(&task->work, task_work_entry);
	/* Before the task returns to user code, also where other interrupts are threads. */
	task->irq = IRQ_WORK_INIT_HARD(irq_work_entry);
	spin_lock_init(&task->lock);
}

/* Of the current task, by an interrupt or an NMI. One that interrupts another here goes without. */
static struct task *task_take(struct task_struct *of)
{
	u32 first = first_near(of), at;
	struct task *task = NULL;

	if (this_cpu_inc_return(taking) == 1) {
		for (at = first; !task && at < first + TASKS_NEAR; at++) {
			if (READ_ONCE(keys[at]) ||
			    cmpxchg(&keys[at], 0, (unsigned long)of | IS_BEING_TAKEN))
				continue;
			task = &tasks[at];
			task_make(task, of);
			smp_store_release(&keys[at], (unsigned long)of);
		}
	}
	this_cpu_dec(taking);
	return task;
}

/* ---- requests: any context ---- */

static void count_outcome(int outcome)
{
	if (outcome >= 0 && outcome < UNWIND_COUNTED_OUTCOMES)
		this_cpu_inc(counts.outcomes[outcome]);
}

/* A sample of the current task. Interrupt or NMI. */
void task_sample(struct rings *rings, struct pt_regs *regs, u64 period)
{
	struct task *task = NULL;
	struct who who;
	u64 cookie = 0;

	this_cpu_inc(counts.samples);
	if (current->mm && !(current->flags & (PF_KTHREAD | PF_EXITING))) {
		task = task_find(current) ?: task_take(current);
		if (!task)
			this_cpu_inc(counts.no_task);
	}
	if (task) {
		if (unlikely(task->who_serial != rings->serial)) {
			task->who = rings_who(rings, current);
			/* An NMI here takes its own. */
			barrier();
			task->who_serial = rings->serial;
		}
		who = task->who;
		count_outcome(unwind_request(&task->unwind, client, &cookie));
	} else {
		who = rings_who(rings, current);
	}
	put_sample(rings, who, regs, period, cookie);
}

static int add_work(struct task *task)
{
	return task_work_add(task->task, &task->work, TWA_RESUME);
}

int32_t unwind_host_schedule(struct unwind_task *unwind, int32_t in_nmi)
{
	struct task *task = container_of(unwind, struct task, unwind);

	if (atomic_xchg(&task->queued, 1))
		return 0;
	/* Until the work ends. */
	if (!try_module_get(THIS_MODULE))
		goto refused;
	if (in_nmi) {
		irq_work_queue(&task->irq);
		return 0;
	}
	if (!add_work(task))
		return 0;
	module_put(THIS_MODULE);
refused:
	atomic_set(&task->queued, 0);
	return -1;
}

static void irq_work_entry(struct irq_work *irq)
{
	struct task *task = container_of(irq, struct task, irq);

	if (!add_work(task))
		return;
	/* The task is past its last work: what was asked for is told as lost when it is gone. */
	atomic_set(&task->queued, 0);
	module_put(THIS_MODULE);
}

int32_t unwind_host_in_nmi(void) { return in_nmi() != 0; }
uint32_t unwind_host_cpu(void) { return raw_smp_processor_id(); }

uint32_t unwind_host_task_kind(struct unwind_task *unwind)
{
	struct task *task = container_of(unwind, struct task, unwind);
	unsigned int flags = READ_ONCE(task->task->flags);

	if (flags & PF_KTHREAD)
		return UNWIND_TASK_KIND_KERNEL_THREAD;
	if (flags & USER_WORKER)
		return UNWIND_TASK_KIND_USER_WORKER;
	return flags & PF_EXITING ? UNWIND_TASK_KIND_EXITING : UNWIND_TASK_KIND_USER;
}

/* No delivery runs when the module goes. */
int32_t unwind_host_relax(uint64_t turn)
{
	cond_resched();
	return turn > 1000;
}

/* ---- the walk: the task itself, on its way back to user code ---- */

static bool is_flat(u16 selector, u16 flat)
{
	return (selector | 3) == (flat | 3);
}

int32_t unwind_host_walk(struct unwind_task *unwind, struct unwind_walk *walk)
{
	struct task *task = container_of(unwind, struct task, unwind);
	const struct pt_regs *regs = task_pt_regs(current);

	if (!task->memory)
		return -1;
	/* Segments that the program has made itself have bases that are not known here. */
	walk->regs.mode = is_flat(regs->cs, __USER_CS)	 ? UNWIND_MODE_LONG :
			  is_flat(regs->cs, __USER32_CS) ? UNWIND_MODE_COMPAT :
							   UNWIND_MODE_VM86;
	walk->regs.all = 1;
	walk->regs.rip = regs->ip;
	walk->regs.rsp = regs->sp;
	walk->regs.rbp = regs->bp;
	walk->regs.rax = regs->ax;
	walk->regs.rbx = regs->bx;
	walk->regs.rcx = regs->cx;
	walk->regs.rdx = regs->dx;
	walk->regs.rsi = regs->si;
	walk->regs.rdi = regs->di;
	walk->regs.r8 = regs->r8;
	walk->regs.r9 = regs->r9;
	walk->regs.r10 = regs->r10;
	walk->regs.r11 = regs->r11;
	walk->regs.r12 = regs->r12;
	walk->regs.r13 = regs->r13;
	walk->regs.r14 = regs->r14;
	walk->regs.r15 = regs->r15;
	walk->space = &task->space->modules;
	walk->rows = &task->memory->rows;
	walk->scratch = &task->memory->scratch;
	walk->context = task;
	walk->flags = UNWIND_MAY_FAULT | (boot_cpu_has(X86_FEATURE_LA57) ? UNWIND_FIVE_LEVEL : 0);
	task->searches = 0;
	return 0;
}

void unwind_host_deliver(struct unwind_task *unwind, const struct unwind_delivery *delivery)
{
	struct task *task = container_of(unwind, struct task, unwind);
	const struct unwind_stack *stack = &delivery->stack;
	bool has_stack = delivery->sample == UNWIND_SAMPLE_MATCHED || delivery->sample == UNWIND_SAMPLE_TRUNCATED;
	struct session *now;

	if (delivery->sample < UNWIND_COUNTED_SAMPLES)
		this_cpu_inc(counts.deliveries[delivery->sample]);
	if (has_stack && stack->end < UNWIND_COUNTED_ENDS)
		this_cpu_inc(counts.ends[stack->end]);
	rcu_read_lock();
	now = rcu_dereference(session);
	/* A session has no stacks that one before has asked for. */
	if (now && task->who_serial == now->rings.serial && (has_stack || now->rings.tells_ends))
		put_stack(&now->rings, task->who, delivery);
	rcu_read_unlock();
}

/* Has the task's space, and keeps it for the task. May sleep. */
static struct space *walk_begin(struct task *task)
{
	struct space *space;

	spin_lock_irq(&task->lock);
	task->walks = true;
	space = task->space;
	spin_unlock_irq(&task->lock);
	if (!space)
		space = task->space = space_get(current->mm);
	return space;
}

/* Outside of a walk: forgets the space. */
static void forget_space(struct task *task)
{
	struct space *space = NULL;
	unsigned long flags;

	spin_lock_irqsave(&task->lock, flags);
	if (!task->walks)
		swap(space, task->space);
	spin_unlock_irqrestore(&task->lock, flags);
	if (space)
		space_put(space);
}

static void walk_end(struct task *task)
{
	const struct tables *tables = NULL;
	struct session *now;
	bool is_over;

	spin_lock_irq(&task->lock);
	if (task->space)
		tables = task->space->tables;
	task->walks = false;
	spin_unlock_irq(&task->lock);
	/* tasks_forget_spaces has left it to this, if the session has ended meanwhile: there may be another one. */
	rcu_read_lock();
	now = rcu_dereference(session);
	is_over = !now || tables != now->tables;
	rcu_read_unlock();
	if (is_over)
		forget_space(task);
}

static void abandon(struct task *task, u32 loss)
{
	unwind_close(&task->unwind);
	unwind_abandon(&task->unwind, loss);
}

void task_deliver(struct callback_head *work)
{
	struct task *task = container_of(work, struct task, work);
	struct space *space;

	/* What is asked for from here on queues another work. */
	atomic_xchg(&task->queued, 0);
	if (!current->mm || current->flags & PF_EXITING) {
		abandon(task, UNWIND_LOSS_TASK_GONE);
		return;
	}
	space = walk_begin(task);
	if (space && space->notifier.mm != current->mm) {
		/* It has failed to execute another program when its own was gone, and is about to die. */
		walk_end(task);
		forget_space(task);
		abandon(task, UNWIND_LOSS_EXEC);
		return;
	}
	if (space)
		space_follow_tables(space);
	task->memory = space ? walk_memory_take(space) : NULL;
	if (!task->memory)
		this_cpu_inc(counts.no_memory);
	unwind_deliver(&task->unwind, task->memory ? &task->memory->trace : NULL, UNWIND_RECIPIENTS_REQUESTERS);
	if (task->memory)
		walk_memory_give(space, task->memory);
	walk_end(task);
	local_irq_disable();
	unwind_user_return(&task->unwind);
	local_irq_enable();
}

/* When the session has ended: what tasks know of code goes, or goes at the end of their walk. */
void tasks_forget_spaces(void)
{
	u32 at;

	for (at = 0; at < MAX_TASKS; at++) {
		unsigned long key = smp_load_acquire(&keys[at]);

		if (key && !(key & IS_BEING_TAKEN)) {
			irq_work_sync(&tasks[at].irq);
			forget_space(&tasks[at]);
		}
	}
}

/* ---- the life of tasks: tracepoints, which are found by name ---- */

/* The types of the tracepoints' arguments: kernels may check that they are these. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define EXIT_ARGUMENTS , bool is_last
#else
#define EXIT_ARGUMENTS
#endif

/* The task itself, which does not come back to user code. */
static void on_exit_of(void *unused, struct task_struct *of EXIT_ARGUMENTS)
{
	struct task *task = of == current ? task_find(of) : NULL;

	if (task) {
		abandon(task, UNWIND_LOSS_TASK_GONE);
		forget_space(task);
	}
}

/* The task itself, its new memory in place. */
static void on_exec(void *unused, struct task_struct *of, pid_t old_pid, struct linux_binprm *program)
{
	struct task *task = of == current ? task_find(of) : NULL;

	if (!task)
		return;
	forget_space(task);
	do
		abandon(task, UNWIND_LOSS_EXEC);
	while (unwind_reopen(&task->unwind) == UNWIND_RETURN_PENDING);
	/* Another thread than the first takes its number. */
	WRITE_ONCE(task->who_serial, 0);
}

/* It never runs again. */
static void on_free(void *unused, struct task_struct *of)
{
	struct task *task = task_find(of);

	if (!task)
		return;
	abandon(task, UNWIND_LOSS_TASK_GONE);
	smp_store_release(&keys[task - tasks], 0);
}

static struct hook {
	const char *name;
	void *probe;
	struct tracepoint *tracepoint;
} hooks[] = {
	{ "sched_process_exit", on_exit_of },
	{ "sched_process_exec", on_exec },
	{ "sched_process_free", on_free },
};

static void match(struct tracepoint *tracepoint, void *unused)
{
	u32 at;

	for (at = 0; at < ARRAY_SIZE(hooks); at++)
		if (!strcmp(tracepoint->name, hooks[at].name))
			hooks[at].tracepoint = tracepoint;
}

static void unhook(u32 len)
{
	while (len--)
		tracepoint_probe_unregister(hooks[len].tracepoint, hooks[len].probe, NULL);
	tracepoint_synchronize_unregister();
}

int tasks_begin(void)
{
	int error = -ENOMEM;
	u32 at;

	keys = vzalloc(MAX_TASKS * sizeof(*keys));
	tasks = vzalloc(MAX_TASKS * sizeof(*tasks));
	if (!keys || !tasks || unwind_register(&client))
		goto out;
	for_each_kernel_tracepoint(match, NULL);
	for (at = 0; at < ARRAY_SIZE(hooks); at++) {
		struct hook *hook = &hooks[at];

		error = hook->tracepoint ? tracepoint_probe_register(hook->tracepoint, hook->probe, NULL) : -ENOENT;
		if (error) {
			unhook(at);
			goto out;
		}
	}
	return 0;
out:
	vfree(keys);
	vfree(tasks);
	return error;
}

/* Nobody has the device open, and no work is queued. */
void tasks_end(void)
{
	u32 at;

	unhook(ARRAY_SIZE(hooks));
	for (at = 0; at < MAX_TASKS; at++)
		if (keys[at])
			irq_work_sync(&tasks[at].irq);
	unwind_cancel(NULL, client);
	vfree(keys);
	vfree(tasks);
}
