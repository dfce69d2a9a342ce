// SPDX-License-Identifier: MIT OR GPL-2.0
//
// What the program and its loader share: the records of the ring, in the machine's byte order, the
// counts, and what the loader fills in.
#pragma once

#define MAX_FRAMES 2048
#define MAX_FILES 4096
#define ROOMS 64
#define KERNEL_FRAMES 128 // with the mark before them
#define COPY_PAGES 15
#define FEW_PAGES 4
#define MAX_INTERPRETERS 64
#define PIECES 512

// A file with code: another one if its contents are changed where they are. One without an inode is the
// kernel's own code for user programs (vDSO).
struct file_key {
	u64 inode, size;
	u64 changed; // ns, 0 if that is not told
	u32 device, generation;
};
#define VDSO (~0ull)

enum { FILE_WANTED, FILE_HAS_TABLE, FILE_HAS_NONE };

enum { RECORD_SAMPLE = 1, RECORD_STACK, RECORD_COPY, RECORD_WANTED, RECORD_CALLS };

struct record_head {
	u32 kind;
	u32 tid;
	u32 tgid;
	u32 count;  // of pcs, of copied bytes
	u64 cookie; // of a sample: 0 without a user stack
	u64 time;   // ns, CLOCK_MONOTONIC
	u32 end;    // of a stack
	u32 flags;
};
// Of a sample: the CPU executed user code.
#define IN_USER_MODE 1
// Of a copy: 32-bit code; the stack has more.
#define COPY_IS_32_BIT 1
#define COPY_IS_CUT 2

struct sample_record {
	struct record_head head;
	u64 pc, period, event;
	u64 cpu;
	u64 pcs[KERNEL_FRAMES];
};

struct stack_record {
	struct record_head head;
	u64 pcs[MAX_FRAMES];
};

// The bytes of the stack follow.
struct copy_record {
	struct record_head head;
	u64 registers[21];
};

struct wanted_record {
	struct record_head head;
	struct file_key file;
	u64 start, end, offset;
};

// What was read of an interpreter: of a frame on the native stack that may be the evaluator's its place there
// (words[0]), its address in the file (words[1]), its stack pointer (at) and its CFA (check); of the interpreter's
// record of one the previous one and its innermost call; of a call the previous one, its code, where it is in that,
// and its mark. Of a frame in V8's code its frame pointer (at), what tells its function, bytecode and code from others
// (check), its pc, its place on the stack and what it is (words[0]), the shared data of its function or its kind, its
// array of bytecode, and where it is in that.
struct piece {
	u64 at, check;
	u64 words[4];
};
// The calls of the stack with this cookie, which comes next: evaluators, records, and calls.
struct calls_record {
	struct record_head head; // count of pieces
	u64 thread, first, bias;
	u32 interpreter, evaluators, records, unused;
	struct piece pieces[PIECES];
};

// Why a stack has no more frames.
enum {
	END_OUTERMOST = 1,
	END_DEPTH,      // as many frames as are looked for
	END_MEMORY,     // memory that is not there, or not resident where it may not be faulted in
	END_EXEC,       // the process has executed another program
	END_EXIT,       // the task has ended
	END_FULL,       // the ring has no room for a copy
	// What a walk by tables cannot say: the stack is copied.
	END_ROOM,       // too many walks at the same time
	END_NO_MAPPING, // no code is mapped there
	END_NO_FILE,    // code of no file
	END_WANTED,     // the table is not there yet
	END_NO_TABLE,
	END_NO_ROW,
	END_RULE,       // a rule that needs a register which is not carried
	END_CFA,        // a frame that cannot be
	END_ZERO,       // a return address of zero
	END_BUSY,       // the mappings cannot be looked at now
};

enum {
	COUNT_SAMPLES,
	COUNT_DROPPED,        // samples for which the ring had no room
	COUNT_DROPPED_STACKS, // stacks for which it had none
	COUNT_NOW,            // stacks that were walked at once
	COUNT_DEFERRED,       // requests of a walk in the task
	COUNT_SHARED,         // samples of an entry whose stack was requested before
	COUNT_NO_USER,        // samples of kernel threads
	COUNT_REFUSED,        // requests that the kernel refused
	COUNT_WALKED,         // walks in tasks
	COUNT_COPIED,         // stacks that were copied
	COUNT_EXEC,
	COUNT_EXIT,
	COUNTS,
};
