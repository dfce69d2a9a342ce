// SPDX-License-Identifier: MIT OR GPL-2.0
//
// A walk: from a frame to its caller by the rule of its code, with the stack pointer, the frame pointer and
// the pc alone.
#pragma once

#include "modules.h"

static __always_inline long read(const int may_sleep, void *to, u32 len, u64 from)
{
	if (may_sleep && may_fault)
		return bpf_copy_from_user(to, len, (void *)from);
	return bpf_probe_read_user(to, len, (void *)from);
}

static __always_inline long read_word(const int may_sleep, struct walk *w, u64 *word, u64 from)
{
	u32 half;
	long error;

	if (!w->is_32_bit)
		return read(may_sleep, word, 8, from);
	error = read(may_sleep, &half, 4, from);
	*word = half;
	return error;
}

// The registers that the kernel has saved for a signal handler, above the stack pointer.
static __always_inline int leave_handler(const int may_sleep, struct walk *w)
{
	struct {
		u64 bp, bx, dx, ax, cx, sp, ip;
	} saved;

	if (w->is_32_bit)
		return END_RULE;
	if (read(may_sleep, &saved, sizeof(saved), w->sp + 120))
		return END_MEMORY;
	w->sp = saved.sp;
	w->pc = saved.ip;
	w->fp = saved.bp;
	w->has_fp = 1;
	w->is_leaf = 1;
	return w->pc ? 0 : END_ZERO;
}

// The value of a register that is restored from memory.
static __always_inline int restore(const int may_sleep, struct walk *w, u32 way, u64 cfa, s64 offset,
				   u64 *value)
{
	u64 from = way == AT_SP ? w->sp : way == AT_FP ? w->fp : cfa;

	if ((way != AT_CFA && way != AT_SP && way != AT_FP) || (way == AT_FP && !w->has_fp))
		return END_RULE;
	return read_word(may_sleep, w, value, from + offset) ? END_MEMORY : 0;
}

// Steps to the caller. Returns why there is none.
static __always_inline int step(const int may_sleep, const int may_look, struct walk *w)
{
	struct rule rule;
	u64 pc = w->is_leaf ? w->pc : w->pc - 1;
	u64 cfa, ra, fp = w->fp;
	u32 base, flags, kind, has_fp;
	int end;

	if (pc >> 47)
		return END_NO_MAPPING;
	if (pc - w->module.start >= w->module.end - w->module.start) {
		end = enter_known(w, pc);
		if (end && may_look)
			end = enter_mapped(w, pc);
		if (end)
			return end;
	}
	end = find_rule(w, &rule, pc);
	if (end)
		return end;
	kind = rule.kinds & 0xff;
	if (kind == RULE_OUTERMOST)
		return END_OUTERMOST;
	if (kind == RULE_SIGNAL_CONTEXT)
		return leave_handler(may_sleep, w);
	base = rule.kinds >> 8 & 0xff;
	flags = rule.kinds >> 40 & 0xff;
	if (flags & RULE_IS_UNSURE || base < CFA_SP || base >= CFA_REGISTER)
		return END_RULE;
	if (base == CFA_SP || base == CFA_AT_SP) {
		cfa = w->sp;
	} else {
		if (!w->has_fp)
			return END_RULE;
		if (w->fp < w->sp)
			return END_CFA;
		cfa = w->fp;
	}
	cfa += (s32)low(rule.cfa);
	if (base == CFA_AT_SP || base == CFA_AT_FP) {
		if (read_word(may_sleep, w, &cfa, cfa))
			return END_MEMORY;
		cfa += (s32)high(rule.cfa);
	}
	if ((cfa <= w->sp && !(flags & RULE_IS_SIGNAL)) || cfa & (w->is_32_bit ? 3 : 7))
		return END_CFA;
	end = restore(may_sleep, w, rule.kinds >> 24 & 0xff, cfa, (s32)high(rule.offsets), &ra);
	if (end)
		return end;
	kind = rule.kinds >> 16 & 0xff;
	has_fp = w->has_fp;
	if (kind == FP_UNDEFINED) {
		has_fp = 0;
	} else if (kind != FP_SAME) {
		end = restore(may_sleep, w, kind, cfa, (s32)low(rule.offsets), &fp);
		if (end)
			return end;
		has_fp = 1;
	}
	w->pc = ra;
	w->has_fp = has_fp;
	w->fp = fp;
	w->sp = cfa;
	w->is_leaf = flags & RULE_IS_SIGNAL;
	return w->pc ? 0 : END_ZERO;
}

static __always_inline void begin(struct walk *w, const u64 *registers, u32 tgid)
{
	w->pc = registers[IP];
	w->sp = registers[SP];
	w->fp = registers[BP];
	w->is_leaf = 1;
	w->is_32_bit = (registers[CS] & 0xffff) == CODE_32_BIT;
	w->has_fp = 1;
	w->tgid = tgid;
	w->module.start = w->module.end = 0;
}

// Whether a walk outside may say more than this.
static __always_inline int is_for_outside(u32 end)
{
	return end >= END_ROOM;
}
