// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Calls of an interpreter: what it keeps of those of the thread, read where its evaluator is on the stack. What
// the words mean is told outside, where names are.
#pragma once

#include "memory.h"
#include "output.h"

// Interpreters and threads that are looked at.
#define THREADS 1024
// Bytes of a call that are read at most.
#define CALL_BYTES 112
// The places of no interpreter, and of more than one.
#define NO_INTERPRETER (~0u)
#define TWO_INTERPRETERS (~1u)

// An interpreter's layout: addresses are those of its file, all else offsets.
struct interpreter {
	u64 runtime;
	u64 from, to; // the code whose frames are kept
	u32 first_interpreter, next_interpreter, first_thread, next_thread, thread_id;
	u32 first; // of a thread: its innermost record, or call
	u32 records, record_innermost, record_previous;
	u32 call_bytes, previous, code, place, mark;
	u32 entry; // marks from this on are of no code
	u32 identity, identity_words, hash;
	// Of V8: slots of a frame below its frame pointer, and what those have.
	u32 marker, function, bytecode, bytecode_offset;
	u32 shared, name, script, instance_type, shared_type, bytecode_type;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_INTERPRETERS);
	__type(key, u32);
	__type(value, struct interpreter);
} interpreters SEC(".maps");

struct calls {
	u64 scratch[CALL_BYTES / 8 + 2];
	u32 is_v8;
	u32 is_unproven; // the innermost frame may be another one
	u32 is_handled; // the frame before was the innermost, and a builtin function
	u32 unused;
	u64 closure; // what a function of V8 that begins has in rdi
	struct calls_record record;
};

static __always_inline void begin_calls(struct calls *calls, const u64 *registers)
{
	calls->closure = registers[DI];
	calls->is_v8 = calls->is_unproven = calls->is_handled = 0;
	calls->record.interpreter = NO_INTERPRETER;
	calls->record.thread = calls->record.first = calls->record.bias = 0;
	calls->record.evaluators = 0;
	calls->record.records = 0;
	calls->record.head.count = 0;
}

// Takes note of the frame that a walk has just left for its caller, in a file with an interpreter: the thread may
// have calls then, whichever function it is. Those of the evaluator are kept.
__noinline int note_frame(struct walk *w, struct calls *calls, u32 at, u64 sp)
{
	struct interpreter *interpreter;
	struct piece *piece;
	u32 key, count;
	u64 pc;

	if (!w || !calls)
		return 0;
	key = w->module.interpreter - 1;
	pc = w->walked - w->module.bias;
	if (calls->record.interpreter == NO_INTERPRETER) {
		calls->record.interpreter = key;
		calls->record.bias = w->module.bias;
	} else if (calls->record.interpreter != key) {
		// Which of two has which calls is not known.
		calls->record.interpreter = TWO_INTERPRETERS;
	}
	if (calls->is_v8)
		return 0;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter || pc - interpreter->from >= interpreter->to - interpreter->from)
		return 0;
	count = calls->record.evaluators;
	if (count >= PIECES / 2)
		return 0;
	piece = &calls->record.pieces[count & (PIECES - 1)];
	piece->at = sp;
	piece->check = w->cfa;
	piece->words[0] = at;
	piece->words[1] = pc;
	calls->record.evaluators = count + 1;
	calls->record.head.count = count + 1;
	return 1;
}

// Finds what the interpreter has of this thread, which may be nothing.
__noinline int find_thread(struct walk *w, struct calls *calls)
{
	struct task_struct *task = current_task();
	struct interpreter *interpreter;
	struct bpf_iter_num it;
	u64 state = 0, thread = 0, id, at, base = task->thread.fsbase;
	u32 key, i = 0;
	int end = END_DEPTH;

	if (!w || !calls)
		return END_RULE;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter)
		return END_RULE;
	at = calls->record.bias + interpreter->runtime + interpreter->first_interpreter;
	begin_loop(it, THREADS);
	while (next_round(it, i)) {
		if (!thread) {
			if (read(w, &state, sizeof(state), at)) {
				end = END_MEMORY;
				break;
			}
			if (!state) {
				end = 0;
				break;
			}
			at = state + interpreter->next_interpreter;
			if (read(w, &thread, sizeof(thread), state + interpreter->first_thread)) {
				end = END_MEMORY;
				break;
			}
			continue;
		}
		if (read(w, &id, sizeof(id), thread + interpreter->thread_id)) {
			end = END_MEMORY;
			break;
		}
		if (id == base) {
			calls->record.thread = thread;
			end = read(w, &calls->record.first, sizeof(u64), thread + interpreter->first);
			if (end || calls->record.first)
				break;
			end = END_DEPTH;
		}
		if (read(w, &thread, sizeof(thread), thread + interpreter->next_thread)) {
			end = END_MEMORY;
			break;
		}
	}
	end_loop(it);
	return end;
}

static __always_inline u64 scratch_word(struct calls *calls, u32 offset)
{
	return calls->scratch[(offset >> 3) & 15];
}

static __always_inline u64 mixed(u64 sum, u64 word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
	return sum ^ sum >> 29;
}

// Reads what tells a code object from others that may come to be at its place: where its texts are, and the
// hash of its name.
__noinline int identify(struct walk *w, struct calls *calls, u64 code, u32 at)
{
	struct interpreter *interpreter;
	u64 words[4] = {}, hash, sum;
	u32 key;

	if (!w || !calls)
		return 0;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter)
		return 0;
	if (read(w, words, sizeof(words), code + interpreter->identity) ||
	    read(w, &hash, sizeof(hash), words[1] + interpreter->hash))
		return END_MEMORY;
	if (interpreter->identity_words < 4)
		words[3] = 0;
	sum = mixed(mixed(mixed(mixed(mixed(0, words[0]), words[1]), words[2]), words[3]), hash);
	calls->record.pieces[at & (PIECES - 1)].check = sum;
	return 0;
}

// Reads the records of evaluators. Returns where the innermost call is.
__noinline u64 read_records(struct walk *w, struct calls *calls)
{
	struct interpreter *interpreter;
	struct bpf_iter_num it;
	u64 at, call;
	u32 key, i = 0;

	if (!w || !calls)
		return 0;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter)
		return 0;
	at = call = calls->record.first;
	begin_loop(it, PIECES);
	while (next_round(it, i)) {
		struct piece *piece;

		if (!at || i >= interpreter->records || calls->record.head.count >= PIECES)
			break;
		if (read(w, calls->scratch, 24, at)) {
			call = 0;
			break;
		}
		piece = &calls->record.pieces[calls->record.head.count & (PIECES - 1)];
		piece->at = at;
		piece->words[0] = scratch_word(calls, interpreter->record_previous);
		piece->words[1] = scratch_word(calls, interpreter->record_innermost);
		if (!i)
			call = piece->words[1];
		calls->record.head.count++;
		calls->record.records++;
		at = piece->words[0];
	}
	end_loop(it);
	return call;
}

// Reads the calls of the thread, the innermost first.
__noinline int read_calls(struct walk *w, struct calls *calls)
{
	struct interpreter *interpreter;
	struct bpf_iter_num it;
	u32 key, i = 0, len;
	u64 at;
	int end;

	if (!w || !calls)
		return END_RULE;
	calls->record.head.count = calls->record.evaluators;
	calls->record.records = 0;
	calls->record.thread = calls->record.first = 0;
	w->absent_len = 0;
	end = find_thread(w, calls);
	if (end)
		return end;
	if (!calls->record.thread)
		return calls->record.evaluators ? END_RULE : 0;
	key = calls->record.interpreter;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	if (!interpreter)
		return END_RULE;
	len = interpreter->call_bytes;
	if (len > CALL_BYTES)
		len = CALL_BYTES;
	at = read_records(w, calls);
	if (!at && w->absent_len)
		return END_MEMORY;
	begin_loop(it, PIECES);
	while (next_round(it, i)) {
		u32 count = calls->record.head.count;
		struct piece *piece = &calls->record.pieces[count & (PIECES - 1)];
		u64 mark;

		if (!at)
			break;
		if (count >= PIECES) {
			end = END_DEPTH;
			break;
		}
		end = read(w, calls->scratch, len, at);
		if (end)
			break;
		piece->at = at;
		piece->check = 0;
		piece->words[0] = scratch_word(calls, interpreter->previous);
		piece->words[1] = scratch_word(calls, interpreter->code);
		piece->words[2] = scratch_word(calls, interpreter->place);
		piece->words[3] = scratch_word(calls, interpreter->mark);
		mark = piece->words[3] >> ((interpreter->mark & 7) * 8) & 0xff;
		if (mark < interpreter->entry && piece->words[1] & ~3ull) {
			end = identify(w, calls, piece->words[1] & ~3ull, count);
			if (end)
				break;
		}
		calls->record.head.count = count + 1;
		at = piece->words[0];
	}
	end_loop(it);
	return end;
}

// Tells of calls, if there are some, or may be. Returns whether there is no room for them: the stack is dropped then,
// which would be one without calls.
static __always_inline int put_calls(struct calls *calls, u64 cookie, u32 end)
{
	u32 pieces = calls->record.head.count;

	if (!end && !calls->record.evaluators && pieces == calls->record.records)
		return 0;
	if (pieces > PIECES)
		pieces = PIECES;
	put_head(&calls->record.head, RECORD_CALLS, cookie);
	calls->record.head.count = pieces;
	calls->record.head.end = end;
	if (!bpf_ringbuf_output(&ring, &calls->record,
				__builtin_offsetof(struct calls_record, pieces) +
					pieces * sizeof(struct piece),
				BPF_RB_NO_WAKEUP))
		return 0;
	count(COUNT_DROPPED_STACKS);
	return 1;
}
