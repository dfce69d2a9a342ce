// SPDX-License-Identifier: MIT OR GPL-2.0
//
// In place of the program's own kernel.h, which is declarations.h here: helpers are variables, which host.c
// sets, and where the program touches what an interrupt touches, too, one may come.
#pragma once

#define const
#include "declarations.h"
#undef const

#undef has_field
#define has_field(field) 1
#undef to_read
#define to_read(type, pointer) \
	((type *)_Generic((type *)0, struct bpf_perf_event_data_kern *: kernels(), default: (pointer)))
#undef exists
#define exists(function) can_defer

extern int can_defer;
void interrupt(void);
struct bpf_perf_event_data_kern *kernels(void);

#define __sync_val_compare_and_swap(at, old, new) ({ \
	interrupt(); \
	typeof(*(at)) was = __sync_val_compare_and_swap(at, old, new); \
	interrupt(); \
	was; \
})
#define __sync_lock_test_and_set(at, new) ({ \
	interrupt(); \
	typeof(*(at)) was = __sync_lock_test_and_set(at, new); \
	interrupt(); \
	was; \
})
