// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Table images, and the rule for an address. The module `compact` of unwind-sframe has what their words say.
#pragma once

#include "kernel.h"
#include "records.h"

struct image {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_FILES);
	__type(key, u32);
	__array(values, struct image);
} images SEC(".maps");

struct module {
	u64 start, end;
	u64 bias; // what the file's addresses are moved by
	u32 image;
	u32 interpreter; // its place plus one, 0 of code that is none's
};
// Beside the place of an interpreter: its calls are read frame by frame.
#define IS_V8 0x80000000

struct rule {
	u64 kinds, cfa, offsets;
};
enum { RULE_NONE, RULE_ORDINARY, RULE_OUTERMOST, RULE_SIGNAL_CONTEXT };
enum { CFA_SP = 1, CFA_FP, CFA_AT_SP, CFA_AT_FP, CFA_REGISTER, CFA_TWICE_AT_SP, CFA_TWICE_AT_FP };
// How the caller's frame pointer and the return address are found.
enum { FP_SAME, AT_CFA, FP_UNDEFINED, IS_CFA, IS_SP, IS_FP, AT_SP, AT_FP };
#define RULE_IS_SIGNAL 1
#define RULE_BX_SAME 0xff
#define DWARF_BX 3
#define RULE_IS_UNSURE (2 | 4 | 8)

struct words {
	u64 first, second;
};

struct walk {
	u64 pc, sp, fp;
	u64 bx, bx_at; // as it was sampled, and where the frame's is, or one of the values below
	u32 is_leaf; // pc is an instruction to be executed, not a return address
	u32 word;    // bytes of a word: 4 in 32-bit code
	u32 has_fp;
	u32 tgid;
	struct module module; // of the last pc
	u32 first_page, pages, rows_at, rules_at;
	struct rule rule; // of the pc
	u64 cfa;
	// Where the caller's registers are: the return address at `from`, or after the frame pointer there,
	// which else is at `fp_from`, if that is not 0. And as many bytes of words, read from there.
	u64 from, fp_from;
	u32 len, absent_len;
	struct words words, fp_words;
	u64 absent; // what could not be read
	u64 walked; // the pc of the frame that was left last
};

enum { BX_SAME, BX_UNKNOWN };

// The rules that were looked up last, by image and address.
#define RULES_KEPT 512
struct kept_rule {
	u64 key;
	struct rule rule;
};
// A part of the stack, up to the end of its page at most: reading takes as long as all else that a frame
// takes, and the next frames are there most often.
#define STACK_PART 512
struct stack_part {
	u64 at;
	u64 len;
	u8 bytes[STACK_PART + 16]; // with room for a read of two words at the last byte
};
struct kept {
	struct kept_rule rules[RULES_KEPT];
	struct stack_part part; // of this walk
};

static __always_inline u32 low(u64 word)
{
	return word;
}

static __always_inline u32 high(u64 word)
{
	return word >> 32;
}

static __always_inline u64 word_of(void *image, u32 at)
{
	u64 *word = bpf_map_lookup_elem(image, &at);

	return word ? *word : 0;
}

static __always_inline u32 half_of(void *image, u32 at)
{
	u64 word = word_of(image, at >> 1);

	return at & 1 ? high(word) : low(word);
}

// Where the image of the walk's module has what.
static __always_inline int enter(struct walk *w)
{
	void *image = bpf_map_lookup_elem(&images, &w->module.image);
	u64 sizes, rows;

	if (!image)
		return END_NO_TABLE;
	sizes = word_of(image, 1);
	rows = word_of(image, 2);
	w->pages = low(sizes);
	w->first_page = high(rows);
	w->rows_at = 8 + ((w->pages + 2) & ~1u);
	w->rules_at = (w->rows_at + ((low(rows) + 1) & ~1u)) / 2;
	return 0;
}

// Finds the rule for an address of the walk's module.
__noinline int look_up(struct walk *w, u64 at)
{
	struct bpf_iter_num it;
	void *image;
	u32 page, from, to, row = 0, i = 0;

	if (!w)
		return 0;
	image = bpf_map_lookup_elem(&images, &w->module.image);
	if (!image || (at >> 16) - w->first_page >= w->pages)
		return 0;
	page = (at >> 16) - w->first_page;
	from = half_of(image, 8 + page);
	to = half_of(image, 9 + page);
	begin_loop(it, 17);
	while (next_round(it, i)) {
		u32 middle = from + (to - from) / 2;
		u32 found;

		if (from >= to)
			break;
		found = half_of(image, w->rows_at + middle);
		if ((found & 0xffff) <= (at & 0xffff)) {
			row = found;
			from = middle + 1;
		} else {
			to = middle;
		}
	}
	end_loop(it);
	from = w->rules_at + 3 * (row >> 16);
	w->rule.kinds = word_of(image, from);
	w->rule.cfa = word_of(image, from + 1);
	w->rule.offsets = word_of(image, from + 2);
	return 0;
}

// Finds it among those that were looked up last, first. Images do not change, and none takes the place
// of another.
static __always_inline int find_rule(struct walk *w, struct kept *kept, u64 pc)
{
	u64 at, key;
	struct kept_rule *rule;

	at = pc - w->module.bias;
	if (at >> 48)
		return END_NO_ROW;
	key = at ^ (u64)(w->module.image + 1) << 48;
	rule = &kept->rules[(key ^ key >> 9 ^ key >> 48) & (RULES_KEPT - 1)];
	if (rule->key == key) {
		w->rule = rule->rule;
	} else {
		w->rule.kinds = 0;
		look_up(w, at);
		rule->key = key;
		rule->rule = w->rule;
	}
	barrier();
	return (w->rule.kinds & 0xff) == RULE_NONE ? END_NO_ROW : 0;
}
