// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Frames in code of V8: of its builtin functions, which have no rows, and of what it compiles, which is in no file.
// All of it keeps frame pointers where it calls, so a return address there has its frame at the frame pointer. The
// innermost frame may not stand: such a stack is copied, and what is told here is for who walks the copy.
#pragma once

#include "calls.h"

#define V8_BELOW 48	 // bytes of a frame below its frame pointer that are read
#define V8_SHARED 48	 // of a function's shared data
#define V8_SHARED_AT 8	 // where that is among the words that were read
#define V8_KINDS 256	 // no kind of frame has this number
#define V8_IDENTITY 13	 // words that tell a frame's function, bytecode and code from others
#define V8_CODE 16	 // bytes of code before the pc and after it
#define V8_PLACE 48	 // the first word of a piece: the pc, the place on the stack, what it is
#define V8_IS_BUILTIN (1ull << 60)
#define V8_IS_EXACT (1ull << 61)
#define V8_FRAMELESS (1ull << 63)  // its frame does not stand yet, or no more
#define V8_IS_HANDLED (1ull << 62) // by the innermost frame, a builtin function: the place in bytecode may be an old one
#define V8_LOOKS 64	 // how often a thread's callers are looked at for V8's file
#define V8_LOOKS_FAR 64 // and how many of them

// The interpreter of the process, if it has V8.
static __always_inline u32 v8_of(struct walk *w)
{
	struct task_struct *task = current_task();
	struct space *space = bpf_map_lookup_elem(&spaces, &w->tgid);

	if (!space || !is_of(space, task))
		return NO_INTERPRETER;
	return (space->v8 & ~IS_V8) - 1;
}

// Looks for V8's file at the callers of code that is in no file. Returns whether that is to be done again: the table of
// a file is awaited.
__noinline int look_for_v8(struct walk *w)
{
	struct bpf_iter_num it;
	struct words saved;
	u64 fp;
	u32 i = 0;
	int end = 0;

	if (!w || !w->has_fp)
		return 0;
	fp = w->fp;
	begin_loop(it, V8_LOOKS_FAR);
	while (next_round(it, i)) {
		if (fp < w->sp || read(w, &saved, sizeof(saved), fp) || saved.first <= fp)
			break;
		fp = saved.first;
		end = enter_at(w, saved.second - 1);
		if (end != END_NO_FILE)
			break;
	}
	end_loop(it);
	w->module.start = w->module.end = 0;
	return end == END_WANTED || end == END_BUSY;
}

// What a frame has below its frame pointer.
static __always_inline u64 slot(struct calls *calls, u32 below)
{
	return calls->scratch[(V8_BELOW - below) >> 3 & 7];
}

// The type of the object that a word is the address of.
static __always_inline int type_of(struct walk *w, struct interpreter *interpreter, u64 word, u16 *type)
{
	u64 map;

	if (!(word & 1))
		return END_RULE;
	if (read(w, &map, sizeof(map), word & ~3ull))
		return END_MEMORY;
	if (!(map & 1))
		return END_RULE;
	return read(w, type, sizeof(*type), (map & ~3ull) + interpreter->instance_type);
}

// What tells the code of a frame, and the words of its function and bytecode, from others.
static __always_inline int sum_v8(struct walk *w, struct piece *piece, u64 *words)
{
	u64 sum = 0;
	u32 i;

	if (!(piece->words[0] & V8_IS_BUILTIN)) {
		u64 pc = piece->words[0] << 16 >> 16;

		// At the start of memory there is nothing before the pc.
		if (read(w, words + 9, 2 * V8_CODE, pc - V8_CODE)) {
			words[9] = words[10] = 0;
			if (read(w, words + 11, V8_CODE, pc))
				return END_MEMORY;
		}
	}
	for (i = 0; i < V8_IDENTITY; i++)
		sum = mixed(sum, words[i]);
	piece->check = sum;
	return 0;
}

// Takes note of the function of a frame, and of what tells it from others that come to be at its place.
__noinline int identify_v8(struct walk *w, struct calls *calls, struct piece *piece, u64 closure)
{
	struct interpreter *interpreter;
	u64 words[V8_IDENTITY] = {}, shared;
	u32 key;
	u16 type;
	int error;

	if (!w || !calls || !piece)
		return END_RULE;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter)
		return END_RULE;
	if (!(closure & 1))
		return END_RULE;
	if (read(w, &shared, sizeof(shared), (closure & ~3ull) + interpreter->shared))
		return END_MEMORY;
	error = type_of(w, interpreter, shared, &type);
	if (error)
		return error;
	if (type != interpreter->shared_type)
		return END_RULE;
	if (read(w, calls->scratch + V8_SHARED_AT, V8_SHARED, shared & ~3ull))
		return END_MEMORY;
	words[0] = scratch_word(calls, V8_SHARED_AT * 8 + interpreter->name);
	words[1] = scratch_word(calls, V8_SHARED_AT * 8 + interpreter->script);
	if (words[0] & 1 && read(w, words + 2, 24, (words[0] & ~3ull) + 8))
		return END_MEMORY;
	piece->words[1] = shared;
	piece->words[2] = slot(calls, interpreter->bytecode);
	piece->words[3] = slot(calls, interpreter->bytecode_offset);
	// Other frames than those of bytecode have something else there, which may change.
	if (piece->words[0] & V8_FRAMELESS || type_of(w, interpreter, piece->words[2], &type) || type != interpreter->bytecode_type ||
	    read(w, words + 5, 32, (piece->words[2] & ~3ull) + 8))
		piece->words[2] = piece->words[3] = 0;
	return sum_v8(w, piece, words);
}

// The same of code whose function is not known.
__noinline int identify_code_v8(struct walk *w, struct piece *piece)
{
	u64 words[V8_IDENTITY] = {};

	if (!w || !piece)
		return END_RULE;
	piece->words[1] = piece->words[2] = piece->words[3] = 0;
	return sum_v8(w, piece, words);
}

// Takes note of a frame that was read, whose execution is at `first`.
static __always_inline int note_v8(struct walk *w, struct calls *calls, struct interpreter *interpreter, u64 first)
{
	u64 marker = slot(calls, interpreter->marker);
	u32 count = calls->record.head.count;
	struct piece *piece = &calls->record.pieces[count & (PIECES - 1)];
	int error;

	if (count >= PIECES)
		return END_DEPTH;
	piece->at = w->fp;
	piece->check = 0;
	piece->words[0] = first;
	piece->words[1] = marker;
	piece->words[2] = piece->words[3] = 0;
	if (marker & 1) {
		error = identify_v8(w, calls, piece, slot(calls, interpreter->function));
		if (error)
			return error;
	} else if (!(marker >> 1) || marker >> 1 >= V8_KINDS) {
		return END_RULE;
	}
	calls->record.head.count = count + 1;
	return 0;
}

// Takes note of code that begins or ends, if its frame would be at this place. If it begins, a function's is told by what
// was called.
static __always_inline void note_frameless(struct walk *w, struct calls *calls, u64 first, u64 place)
{
	u32 count = calls->record.head.count;
	struct piece *piece = &calls->record.pieces[count & (PIECES - 1)];

	if (count >= PIECES)
		return;
	piece->at = place;
	piece->words[0] = first | V8_FRAMELESS;
	if (identify_v8(w, calls, piece, calls->closure) && identify_code_v8(w, piece))
		return;
	calls->record.head.count = count + 1;
}

static __always_inline int is_builtin(struct walk *w, struct interpreter *interpreter, u32 key, u64 pc)
{
	return w->module.interpreter == ((key + 1) | IS_V8) &&
	       pc - w->module.bias - interpreter->from < interpreter->to - interpreter->from;
}

// The innermost frame may not stand yet, or no more: then the one at the frame pointer is its caller's, whose
// execution is where the stack pointer says, or after the frame pointer there. And if it is that of code in no file,
// `made` is its execution.
__noinline int note_callers_v8(struct walk *w, struct calls *calls, u32 at, u64 made, int has_slots)
{
	u64 first = (u64)at << V8_PLACE | (calls && calls->is_handled ? V8_IS_HANDLED : 0), place;
	struct interpreter *interpreter;
	struct words saved;
	u32 key;
	int is_of_v8, is_made;

	if (!w || !calls)
		return 0;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter || read(w, &saved, sizeof(saved), w->sp))
		return 0;
	place = w->sp - 8;
	is_made = enter_at(w, saved.first - 1) == END_NO_FILE;
	is_of_v8 = is_builtin(w, interpreter, key, saved.first - 1);
	if (!is_made && !is_of_v8) {
		place = saved.first == w->fp ? w->sp : 0;
		saved.first = saved.second;
		is_made = enter_at(w, saved.first - 1) == END_NO_FILE;
		is_of_v8 = is_builtin(w, interpreter, key, saved.first - 1);
	}
	if (made && !has_slots)
		note_frameless(w, calls, made, w->fp);
	if (is_made || is_of_v8) {
		if (made && place)
			note_frameless(w, calls, made, place);
		if (has_slots)
			note_v8(w, calls, interpreter,
				first | saved.first << 16 >> 16 | (is_of_v8 ? V8_IS_BUILTIN : 0));
	}
	w->module.start = w->module.end = 0;
	return 0;
}

// Steps to the caller of a frame in V8's code, of which tables end so. Returns why there is none, and that end if it
// is no such code.
__noinline int step_in_v8(struct walk *w, struct calls *calls, u32 at, int end)
{
	struct interpreter *interpreter;
	u64 first;
	u32 key;
	int error = 0, has_slots;

	if (!w || !calls)
		return END_RULE;
	key = v8_of(w);
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter || !w->has_fp || w->word != 8 || w->fp < w->sp || w->fp & 7)
		return end;
	first = w->pc << 16 >> 16 | (u64)at << V8_PLACE;
	if (end == END_NO_ROW) {
		if (!is_builtin(w, interpreter, key, w->walked))
			return end;
		first |= V8_IS_BUILTIN;
	}
	if (w->is_leaf)
		first |= V8_IS_EXACT;
	else if (calls->is_handled)
		first |= V8_IS_HANDLED;
	if (calls->record.interpreter == NO_INTERPRETER)
		calls->record.interpreter = key;
	else if (calls->record.interpreter != key)
		return end;
	calls->is_v8 = 1;
	// Another program in this process would have other functions.
	calls->record.bias = (u64)current_task()->mm;
	if (read(w, calls->scratch, V8_BELOW + 16, w->fp - V8_BELOW))
		return END_MEMORY;
	// What is below the stack pointer is of a function that was called before.
	has_slots = !w->is_leaf || w->fp - interpreter->function >= w->sp;
	if (has_slots)
		error = note_v8(w, calls, interpreter, first);
	if (error)
		return error == END_MEMORY ? error : end;
	calls->is_handled = w->is_leaf && end == END_NO_ROW;
	if (w->is_leaf) {
		calls->is_unproven = 1;
		// Above a signal's frame the registers are others.
		note_callers_v8(w, calls, at, end == END_NO_FILE && !at ? first : 0, has_slots);
		if (slot(calls, interpreter->marker) & 1)
			calls->is_handled = 0;
	}
	w->sp = w->fp + 16;
	w->fp = calls->scratch[V8_BELOW / 8];
	w->pc = calls->scratch[V8_BELOW / 8 + 1];
	w->bx_at = BX_UNKNOWN;
	w->is_leaf = 0;
	return w->pc ? 0 : END_ZERO;
}
