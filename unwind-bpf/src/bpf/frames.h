// SPDX-License-Identifier: MIT OR GPL-2.0
//
// A walk: from a frame to its caller by the rule of its code, with the stack pointer, the frame pointer and
// the pc alone, and rbx where code that changes stacks keeps its CFA there.
#pragma once

#include "memory.h"
#include "modules.h"

// The first bytes of what a handler returns to: mov $15,%rax; syscall.
#define RT_SIGRETURN 0x0f0000000fc0c748ull

// The registers that the kernel has saved for a signal handler, above the stack pointer.
static __always_inline int leave_handler(struct walk *w)
{
	struct {
		u64 bp, bx, dx, ax, cx, sp, ip;
	} saved;
	u64 code;

	// Other code may say that the kernel has saved registers, such as that which changes stacks.
	if (w->word == 4 || bpf_probe_read_user(&code, sizeof(code), (void *)w->pc) || code != RT_SIGRETURN)
		return END_RULE;
	if (read(w, &saved, sizeof(saved), w->sp + 120))
		return END_MEMORY;
	w->bx_at = w->sp + 128;
	w->sp = saved.sp;
	w->pc = saved.ip;
	w->fp = saved.bp;
	w->has_fp = 1;
	w->is_leaf = 1;
	return w->pc ? 0 : END_ZERO;
}

// Finds a CFA that is in rbx. Code that keeps it there may have come from any stack.
static __always_inline int find_cfa_by_bx(struct walk *w)
{
	if ((w->rule.kinds >> 32 & 0xff) != DWARF_BX || w->bx_at == BX_UNKNOWN)
		return END_RULE;
	w->cfa = w->bx;
	if (w->bx_at != BX_SAME) {
		w->words.first = 0;
		if (read(w, &w->words, w->word & 8 ? 8 : 4, w->bx_at))
			return END_MEMORY;
		w->cfa = w->words.first;
	}
	w->cfa += (s32)low(w->rule.cfa);
	barrier();
	return w->cfa & (w->word - 1) ? END_CFA : 0;
}

// Finds the CFA of the walk's frame, by its rule.
static __always_inline int find_cfa(struct walk *w)
{
	u32 base = w->rule.kinds >> 8 & 0xff;

	if ((w->rule.kinds >> 40 & RULE_IS_UNSURE) || base < CFA_SP || base > CFA_TWICE_AT_FP)
		return END_RULE;
	if (base == CFA_REGISTER)
		return find_cfa_by_bx(w);
	if (base == CFA_FP || base == CFA_AT_FP || base == CFA_TWICE_AT_FP) {
		if (!w->has_fp)
			return END_RULE;
		if (w->fp < w->sp)
			return END_CFA;
		w->cfa = w->fp;
	} else {
		w->cfa = w->sp;
	}
	w->cfa += (s32)low(w->rule.cfa);
	if (base >= CFA_TWICE_AT_SP) {
		w->words.first = 0;
		if (read(w, &w->words, w->word & 8 ? 8 : 4, w->cfa))
			return END_MEMORY;
		w->cfa = w->words.first + (s16)(w->rule.kinds >> 48);
	}
	if (base >= CFA_AT_SP) {
		w->words.first = 0;
		if (read(w, &w->words, w->word & 8 ? 8 : 4, w->cfa))
			return END_MEMORY;
		w->cfa = w->words.first + (s32)high(w->rule.cfa);
	}
	barrier();
	if ((w->cfa <= w->sp && !(w->rule.kinds >> 40 & RULE_IS_SIGNAL)) || w->cfa & (w->word - 1))
		return END_CFA;
	return 0;
}

// Where the value of a register is in memory; 0 if it is not there.
static __always_inline u64 place_of(struct walk *w, u32 way, s64 offset)
{
	if (way == AT_CFA)
		return w->cfa + offset;
	if (way == AT_SP)
		return w->sp + offset;
	return way == AT_FP && w->has_fp ? w->fp + offset : 0;
}

// Finds where the registers of the caller are.
static __always_inline int find_caller(struct walk *w)
{
	u32 way = w->rule.kinds >> 16 & 0xff;
	u64 fp;

	w->from = place_of(w, w->rule.kinds >> 24 & 0xff, (s32)high(w->rule.offsets));
	w->fp_from = 0;
	w->len = w->word;
	if (way != FP_SAME && way != FP_UNDEFINED) {
		fp = place_of(w, way, (s32)low(w->rule.offsets));
		if (!fp)
			return END_RULE;
		if (fp + w->word == w->from) {
			w->from = fp;
			w->len = 2 * w->word;
		} else {
			w->fp_from = fp;
		}
	}
	barrier();
	return w->from ? 0 : END_RULE;
}

// Takes note where the caller's rbx is. It is read where a CFA is in it.
static __always_inline void note_bx(struct walk *w)
{
	u32 base = w->rule.kinds >> 8 & 0xff, place = w->rule.kinds >> 32 & 0xff;

	if (base == CFA_REGISTER || !place)
		w->bx_at = BX_UNKNOWN;
	else if (place != RULE_BX_SAME)
		w->bx_at = w->cfa - 4 * place;
}

// Goes to the caller, whose registers were read.
static __always_inline int enter_caller(struct walk *w)
{
	u32 way = w->rule.kinds >> 16 & 0xff;

	if (w->len > w->word) {
		w->fp = w->word == 4 ? low(w->words.first) : w->words.first;
		w->pc = w->word == 4 ? high(w->words.first) : w->words.second;
	} else {
		w->pc = w->words.first;
		if (w->fp_from)
			w->fp = w->fp_words.first;
	}
	w->has_fp = way == FP_SAME ? w->has_fp : way != FP_UNDEFINED;
	note_bx(w);
	w->sp = w->cfa;
	w->is_leaf = w->rule.kinds >> 40 & RULE_IS_SIGNAL;
	barrier();
	return w->pc ? 0 : END_ZERO;
}

// Steps to the caller, by what is resident. Returns why there is none. The walk is what it was if that is
// absent memory. What is found is kept in the walk, where the verifier does not tell one way to it from another.
__noinline int step(struct walk *w, struct kept *kept, int may_look)
{
	u64 pc;
	int end;

	if (!w || !kept)
		return END_NO_ROW;
	pc = w->is_leaf ? w->pc : w->pc - 1;
	w->walked = pc;
	if (pc >> 47)
		return END_NO_MAPPING;
	if (pc - w->module.start >= w->module.end - w->module.start) {
		end = enter_known(w, pc);
		if (end && may_look)
			end = enter_mapped(w, pc);
		if (end)
			return end;
	}
	end = find_rule(w, kept, pc);
	if (end)
		return end;
	if ((w->rule.kinds & 0xff) == RULE_OUTERMOST)
		return END_OUTERMOST;
	if ((w->rule.kinds & 0xff) == RULE_SIGNAL_CONTEXT)
		return leave_handler(w);
	end = find_cfa(w);
	if (end)
		return end;
	end = find_caller(w);
	if (end)
		return end;
	// The frame pointer first, which is below the return address.
	if (w->fp_from) {
		end = read_stack(w, &kept->part, &w->fp_words, w->fp_from, w->word & 8 ? 8 : 4);
		if (end)
			return end;
	}
	end = read_stack(w, &kept->part, &w->words, w->from, w->len);
	if (end)
		return end;
	return enter_caller(w);
}

static __always_inline void begin(struct walk *w, struct kept *kept, const u64 *registers, u32 tgid)
{
	kept->part.len = 0;
	w->pc = registers[IP];
	w->sp = registers[SP];
	w->fp = registers[BP];
	w->bx = registers[BX];
	w->bx_at = BX_SAME;
	w->is_leaf = 1;
	w->word = (registers[CS] & 0xffff) == CODE_32_BIT ? 4 : 8;
	w->has_fp = 1;
	w->tgid = tgid;
	w->module.start = w->module.end = 0;
}

// Whether a walk outside may say more than this.
static __always_inline int is_for_outside(u32 end)
{
	return end >= END_ROOM;
}
