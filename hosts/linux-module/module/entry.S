/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#include <linux/cfi_types.h>
#include <linux/linkage.h>
#include <asm/frame.h>

/*
 * The last use of the module by a task work is the jump to module_put, which returns to the kernel: so no
 * task is in the module's code once it may be unloaded.
 */
	.text
SYM_TYPED_FUNC_START(task_work_entry)
	FRAME_BEGIN
	call	task_deliver
	FRAME_END
	mov	$__this_module, %rdi
	jmp	module_put
SYM_FUNC_END(task_work_entry)
