// SPDX-License-Identifier: MIT OR GPL-2.0
/* For tests: each NMI takes a sample, of tasks that have been sampled before. */
#include <asm/nmi.h>
#include <linux/module.h>

#include "module.h"

static int on_nmi(unsigned int type, struct pt_regs *regs)
{
	struct session *now;

	rcu_read_lock();
	now = rcu_dereference(session);
	if (now && task_is_known(current))
		task_sample(&now->rings, regs, 1);
	rcu_read_unlock();
	return NMI_HANDLED;
}

int test_nmi_begin(void)
{
	return register_nmi_handler(NMI_LOCAL, on_nmi, 0, "unwind");
}

void test_nmi_end(void)
{
	unregister_nmi_handler(NMI_LOCAL, "unwind");
}
