// A made-up host that uses all of the interface: tasks, clients, address spaces and NMIs that are calls.
#include "../include/unwind_ffi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// ---- the target: memory, with pages that may be absent ----

struct segment {
    uint64_t start;
    const void *bytes;
    size_t len;
    bool resident;
};

struct target {
    struct segment segments[8];
    struct unwind_space *space;
    // What unwind_host_find_module adds.
    const struct unwind_module *found;
    uint64_t reads, faults, searches;
    // What happens in the middle of a read, once.
    void (*nmi)(void);
};

static int32_t read_target(struct target *target, void *to, uint64_t addr, size_t len, bool may_fault) {
    target->reads++;
    if (target->nmi) {
        void (*nmi)(void) = target->nmi;
        target->nmi = NULL;
        nmi();
    }
    for (size_t at = 0; at < COUNT(target->segments); at++) {
        struct segment *segment = &target->segments[at];
        uint64_t offset = addr - segment->start;
        if (offset >= segment->len || len > segment->len - offset) continue;
        if (!segment->resident) {
            if (!may_fault) return UNWIND_READ_ABSENT;
            segment->resident = true;
            target->faults++;
        }
        memcpy(to, (const char *)segment->bytes + offset, len);
        return UNWIND_READ_DONE;
    }
    return UNWIND_READ_INVALID;
}

int32_t unwind_host_read(void *context, void *to, uint64_t addr, size_t len) {
    return read_target(context, to, addr, len, true);
}

int32_t unwind_host_read_nofault(void *context, void *to, uint64_t addr, size_t len) {
    return read_target(context, to, addr, len, false);
}

int32_t unwind_host_find_module(void *context, uint64_t pc) {
    struct target *target = context;
    const struct unwind_module *module = target->found;

    target->searches++;
    if (!module || pc < module->start || pc >= module->end) return 0;
    return unwind_space_add(target->space, module) == 0;
}

// ---- tasks ----

struct task {
    struct unwind_task unwind;
    uint32_t kind;
    bool work, cannot_schedule, has_no_walk;
    struct unwind_walk walk;
    uint64_t walks;
};

// The last delivery, and what is done in it.
static struct {
    uint64_t client, cookie;
    uint32_t sample, calls;
    struct unwind_stack stack;
    uint64_t pcs[8];
    uint8_t provenance[8];
    void (*in_callback)(struct task *, const struct unwind_delivery *);
} last;

static bool in_nmi, schedule_was_in_nmi;
static uint64_t patience;

int32_t unwind_host_schedule(struct unwind_task *unwind, int32_t nmi) {
    // It is the first member.
    struct task *task = (struct task *)unwind;

    schedule_was_in_nmi = nmi;
    if (task->cannot_schedule) return 1;
    task->work = true;
    return 0;
}

uint32_t unwind_host_task_kind(struct unwind_task *unwind) { return ((struct task *)unwind)->kind; }
int32_t unwind_host_in_nmi(void) { return in_nmi; }
uint32_t unwind_host_cpu(void) { return 3; }
int32_t unwind_host_relax(uint64_t turn) { return turn >= patience; }

int32_t unwind_host_walk(struct unwind_task *unwind, struct unwind_walk *walk) {
    struct task *task = (struct task *)unwind;

    CHECK(walk->scratch == NULL && walk->regs.rip == 0 && walk->flags == 0);
    task->walks++;
    *walk = task->walk;
    return task->has_no_walk;
}

void unwind_host_deliver(struct unwind_task *unwind, const struct unwind_delivery *delivery) {
    last.client = delivery->client;
    last.cookie = delivery->cookie;
    last.sample = delivery->sample;
    last.stack = delivery->stack;
    last.calls++;
    CHECK(delivery->stack.frames <= COUNT(last.pcs));
    if (delivery->stack.frames) {
        memcpy(last.pcs, delivery->stack.pcs, delivery->stack.frames * sizeof(uint64_t));
        memcpy(last.provenance, delivery->stack.provenance, delivery->stack.frames);
    }
    if (last.in_callback) last.in_callback((struct task *)unwind, delivery);
}

// ---- a program of three functions, each known by something else ----

// `.sframe` at 0x500000, version 2: a function at 0x501000 that pushes 8 bytes by its first instruction.
static const uint8_t sframe[] = {
    0xe2, 0xde, 2, 1, 3, 0, 0xf8, 0,            // magic, version, sorted; x86-64, RA at CFA-8
    1, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0,         // functions, rows, bytes of rows
    0, 0, 0, 0, 20, 0, 0, 0,                    // where functions and rows are
    0, 0x10, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0,   // start, size, first row
    2, 0, 0, 0, 0, 0, 0, 0,                     // how many rows, of one byte of address
    0, 0x03, 8, 1, 0x03, 16,                    // at +0 CFA = SP+8, at +1 CFA = SP+16
};

// `.eh_frame` at 0x401000, and `.eh_frame_hdr` 0x100 bytes after it: a function at 0x402000 that has
// pushed 8 bytes from its fifth byte on.
static uint8_t eh_frame[0x120] = {
    0x14, 0, 0, 0, 0, 0, 0, 0,
    1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b,
    0x0c, 7, 8, 0x90, 1, 0, 0,
    0x10, 0, 0, 0, 0x1c, 0, 0, 0,
    0xe0, 0x0f, 0, 0, 8, 0, 0, 0,
    0, 0x44, 0x0e, 16,
};
static const uint8_t eh_frame_hdr[] = {
    1, 0x1b, 3, 0x3b, 0xfc, 0xfe, 0xff, 0xff, 1, 0, 0, 0, 0x00, 0x0f, 0, 0, 0x18, 0xff, 0xff, 0xff,
};

#define STACK 0x7fff0000ull
#define STACK_END (STACK + sizeof(stack))
static const uint64_t stack[] = {
    0x11, 0x402006,        // of the first function: what it has pushed, its caller
    0x22, 0x403010,        // of the second
    0, 0,                  // of the third, which keeps a frame pointer: the stack's end
};
static const uint64_t PCS[] = {0x501004, 0x402006, 0x403010};

static const struct unwind_module by_sframe = {
    .start = 0x501000, .end = 0x502000, .table = 0x500000, .table_len = sizeof(sframe),
    .format = UNWIND_FORMAT_SFRAME,
};
static const struct unwind_module by_eh_frame = {
    .start = 0x402000, .end = 0x403000, .table = 0x401100, .format = UNWIND_FORMAT_EH_FRAME,
};
static const struct unwind_module by_frame_pointers = {
    .start = 0x403000, .end = 0x404000, .format = UNWIND_FORMAT_FRAME_POINTERS,
};

static struct unwind_scratch scratch, nmi_scratch;
static struct unwind_rows rows;

static struct unwind_space *new_space(size_t bytes) {
    struct unwind_space *space = malloc(bytes);

    CHECK(space && unwind_space_init(space, bytes) == 0);
    return space;
}

static struct unwind_trace *new_trace(size_t frames) {
    struct unwind_trace *trace = malloc(UNWIND_TRACE_BYTES(frames));

    CHECK(trace && unwind_trace_init(trace, UNWIND_TRACE_BYTES(frames)) == 0);
    return trace;
}

static struct target new_target(struct unwind_space *space) {
    memcpy(eh_frame + 0x100, eh_frame_hdr, sizeof(eh_frame_hdr));
    return (struct target){
        .segments = {
            {0x500000, sframe, sizeof(sframe), true},
            {0x401000, eh_frame, sizeof(eh_frame), true},
            {STACK, stack, sizeof(stack), true},
        },
        .space = space,
    };
}

static struct unwind_walk new_walk(struct target *target, uint32_t flags) {
    return (struct unwind_walk){
        .regs = {.rip = PCS[0], .rsp = STACK, .rbp = STACK + 32},
        .space = target->space,
        .scratch = &scratch,
        .context = target,
        .stack_end = STACK_END,
        .flags = flags,
    };
}

static void check_whole(const struct unwind_stack *found) {
    static const uint8_t provenance[] = {
        UNWIND_ORIGIN_REGISTERS | UNWIND_EXACT, UNWIND_ORIGIN_TABLE, UNWIND_ORIGIN_CALL_FRAMES,
    };

    CHECK(found->frames == COUNT(PCS) && memcmp(found->pcs, PCS, sizeof(PCS)) == 0);
    CHECK(memcmp(found->provenance, provenance, sizeof(provenance)) == 0);
    CHECK(found->end == UNWIND_END_ZERO_RETURN_ADDRESS && found->complete && !found->retryable);
    CHECK(found->table_code == 0);
}

// ---- the tests ----

static void walks_by_tables_in_target_memory_and_held(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(100);
    struct unwind_walk walk = new_walk(&target, 0);
    struct unwind_stack found;
    struct unwind_module held;

    CHECK(unwind_space_add(space, &by_sframe) == 0);
    CHECK(unwind_space_add(space, &by_eh_frame) == 0);
    CHECK(unwind_space_add(space, &by_frame_pointers) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);

    // An absent table: a walk without faults ends there, one with faults brings it in.
    target.segments[1].resident = false;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 2 && found.end == UNWIND_END_TABLE && found.retryable && !found.complete);
    CHECK(found.table_code == 1024 + 256);
    target.segments[2].resident = false;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 1 && found.end == UNWIND_END_UNREADABLE && found.retryable);
    walk.flags = UNWIND_MAY_FAULT;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);
    CHECK(target.faults == 2 && target.searches == 0);

    // The rows are kept: no table is read any more.
    walk.rows = &rows;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);
    target.reads = 0;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);
    CHECK(target.reads <= 8);

    // A table that the target does not have, in the host's memory.
    target.segments[0].len = target.segments[1].len = 0;
    held = by_sframe;
    held.held = sframe;
    held.held_addr = held.table;
    held.held_len = sizeof(sframe);
    CHECK(unwind_space_remove(space, 0x501000, 0x501001) == 1);
    CHECK(unwind_space_add(space, &held) == 0);
    held = by_eh_frame;
    held.held = eh_frame;
    held.held_addr = 0x401000;
    held.held_len = sizeof(eh_frame);
    CHECK(unwind_space_remove(space, 0x402000, 0x403000) == 1);
    CHECK(unwind_space_add(space, &held) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);

    // A table that was made of call frame information says so.
    held = by_sframe;
    held.held = sframe;
    held.held_addr = held.table;
    held.held_len = sizeof(sframe);
    held.format = UNWIND_FORMAT_SFRAME_OF_CALL_FRAMES;
    CHECK(unwind_space_remove(space, 0x501000, 0x502000) == 1);
    CHECK(unwind_space_add(space, &held) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.complete && found.provenance[1] == UNWIND_ORIGIN_CALL_FRAMES);

    // A held table that is shorter than it says is malformed, and nothing beyond it is read.
    held.held_len = 40;
    CHECK(unwind_space_remove(space, 0x501000, 0x502000) == 1);
    CHECK(unwind_space_add(space, &held) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(!found.complete && found.frames >= 1);

    // There is room for fewer frames.
    free(trace);
    trace = new_trace(8);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    free(trace);
    free(space);
}

static void finds_modules_when_a_walk_meets_them(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_64);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(16);
    struct unwind_walk walk = new_walk(&target, 0);
    struct unwind_stack found;
    uint64_t unknown;

    walk.rows = &rows;
    CHECK(unwind_space_add(space, &by_eh_frame) == 0 && unwind_space_add(space, &by_frame_pointers) == 0);
    // Nobody is asked where nothing may fault.
    target.found = &by_sframe;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.searches == 0 && !found.complete);
    walk.flags = UNWIND_MAY_FAULT;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.searches == 1);
    check_whole(&found);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.searches == 1);

    // Nor is it kept that nothing was known of a caller.
    CHECK(unwind_space_remove(space, 0x402000, 0x403000) == 1);
    target.found = &by_eh_frame;
    walk.flags = 0;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && !found.complete);
    walk.flags = UNWIND_MAY_FAULT;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);

    // Code without a table, which is known, costs a walk less than code of which nothing is.
    CHECK(unwind_space_clear(space) == 0);
    target.found = NULL;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames >= 1 && target.searches >= 2);
    unknown = target.searches;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.searches > unknown);
    CHECK(unwind_space_add(space, &(struct unwind_module){.start = 0x400000, .end = 0x600000}) == 0);
    unknown = target.searches;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.searches == unknown);
    free(trace);
    free(space);
}

static void rows_of_one_space_are_not_used_for_another(void) {
    struct unwind_space *first = new_space(UNWIND_SPACE_BYTES_16);
    struct unwind_space *second = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(first);
    struct unwind_trace *trace = new_trace(16);
    struct unwind_walk walk = new_walk(&target, 0);
    struct unwind_stack found;
    struct unwind_module other = by_eh_frame;

    // As many changes of each.
    CHECK(unwind_space_add(first, &by_sframe) == 0 && unwind_space_add(second, &by_sframe) == 0);
    other.format = UNWIND_FORMAT_NONE;
    CHECK(unwind_space_add(first, &by_eh_frame) == 0 && unwind_space_add(second, &other) == 0);
    CHECK(unwind_space_add(first, &by_frame_pointers) == 0);
    CHECK(unwind_space_add(second, &by_frame_pointers) == 0);
    walk.rows = &rows;
    for (int turn = 0; turn < 2; turn++) {
        walk.space = first;
        CHECK(unwind_walk_now(&walk, trace, &found) == 0);
        check_whole(&found);
        walk.space = second;
        CHECK(unwind_walk_now(&walk, trace, &found) == 0 && !found.complete);
    }
    free(trace);
    free(first);
    free(second);
}

static void a_walk_ends_where_a_table_is_still_to_come(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(16);
    struct unwind_walk walk = new_walk(&target, UNWIND_MAY_FAULT);
    struct unwind_module awaited = by_eh_frame;
    struct unwind_stack found;

    walk.rows = &rows;
    awaited.format = UNWIND_FORMAT_AWAITED;
    CHECK(unwind_space_add(space, &by_sframe) == 0 && unwind_space_add(space, &awaited) == 0);
    CHECK(unwind_space_add(space, &by_frame_pointers) == 0);
    for (int turn = 0; turn < 2; turn++) {
        CHECK(unwind_walk_now(&walk, trace, &found) == 0);
        CHECK(found.frames == 2 && found.end == UNWIND_END_TABLE && found.retryable && !found.complete);
        CHECK(found.table_code == 513);
    }
    CHECK(target.searches == 0);
    CHECK(unwind_space_remove(space, awaited.start, awaited.end) == 1 && unwind_space_add(space, &by_eh_frame) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    check_whole(&found);
    free(trace);
    free(space);
}

// 18 frames of code that no table is about: what a walk reads, once rows are kept.
static void code_that_is_known_to_have_no_table_costs_little(void) {
    enum { FRAMES = 18 };
    static uint64_t words[2 * FRAMES];
    static uint8_t code[0x1000];
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = {.space = space};
    struct unwind_trace *trace = new_trace(24);
    struct unwind_walk walk = new_walk(&target, UNWIND_MAY_FAULT);
    struct unwind_stack found;
    uint64_t unknown;

    memset(code, 0x90, sizeof(code));
    target.segments[0] = (struct segment){STACK, words, sizeof(words), true};
    target.segments[1] = (struct segment){0x402000, code, sizeof(code), true};
    for (size_t at = 0; at + 1 < FRAMES; at++) {
        words[2 * at] = STACK + 16 * (at + 1);
        words[2 * at + 1] = 0x402100 + 16 * at;
    }
    walk.regs = (struct unwind_registers){.rip = 0x402010, .rsp = STACK, .rbp = STACK};
    walk.stack_end = STACK + sizeof(words);
    walk.rows = &rows;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && found.frames == FRAMES);
    target.reads = 0;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && found.frames == FRAMES && !found.complete);
    unknown = target.reads;
    CHECK(unwind_space_add(space, &(struct unwind_module){.start = 0x402000, .end = 0x403000}) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && found.frames == FRAMES);
    target.reads = 0;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && found.frames == FRAMES && !found.complete);
    printf("reads of a walk of %d frames: %d, with a module of no table %d\n", FRAMES, (int)unknown,
           (int)target.reads);
    /* Two a frame, those of the instructions of the first, and two at the end: the zero once more, and whether a
     * process starts there. */
    CHECK(unknown >= 100 && target.reads <= 47);
    free(trace);
    free(space);
}

static void walks_code_of_32_bits(void) {
    static const uint32_t words[] = {0, 0x8040020, 0x7fff8010, 0x8040010, 0, 0};
    static uint8_t information[0x120] = {
        0x14, 0, 0, 0, 0, 0, 0, 0,
        1, 'z', 'R', 0, 1, 0x7c, 8, 1, 0x1b,
        0x0c, 4, 4, 0x88, 1, 0, 0,
        0x10, 0, 0, 0, 0x1c, 0, 0, 0,
        0xe0, 0x0f, 0, 0, 8, 0, 0, 0,
        0, 0x44, 0x0e, 8,
    };
    const struct unwind_module calls = {
        .start = 0x8052000, .end = 0x8053000, .table = 0x8051100, .format = UNWIND_FORMAT_EH_FRAME,
    };
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = {.segments = {{0x7fff8000, words, sizeof(words), true}}, .space = space};
    struct unwind_trace *trace = new_trace(16);
    struct unwind_stack found;
    struct unwind_walk walk = {
        .regs = {.rip = 0x8041000, .rsp = 0x7fff8000, .rbp = 0x7fff8008, .mode = UNWIND_MODE_COMPAT},
        .space = space,
        .rows = &rows,
        .scratch = &scratch,
        .context = &target,
        .stack_end = 0x7fff8018,
    };
    const struct unwind_module code = {
        .start = 0x8040000, .end = 0x8050000, .format = UNWIND_FORMAT_FRAME_POINTERS,
    };

    CHECK(unwind_space_add(space, &code) == 0);
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 2 && found.pcs[1] == 0x8040010 && found.complete);
    walk.regs.all = 1;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 2);
    // With a base, as of segments that are not flat.
    walk.regs.stack_base = 0x1000;
    walk.regs.rsp -= 0x1000;
    walk.regs.rbp -= 0x1000;
    walk.stack_end = 0;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 2 && found.pcs[1] == 0x8040010);
    // By `.eh_frame` of 32-bit code: a function that has pushed a word, then the one that keeps a frame pointer.
    memcpy(information + 0x100, eh_frame_hdr, sizeof(eh_frame_hdr));
    target.segments[1] = (struct segment){0x8051000, information, sizeof(information), true};
    CHECK(unwind_space_add(space, &calls) == 0);
    walk.regs = (struct unwind_registers){
        .rip = 0x8052004, .rsp = 0x7fff8000, .rbp = 0x7fff8008, .mode = UNWIND_MODE_COMPAT,
    };
    walk.stack_end = 0x7fff8018;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 3 && found.complete && found.pcs[1] == 0x8040020 && found.pcs[2] == 0x8040010);
    CHECK(found.provenance[1] == UNWIND_ORIGIN_CALL_FRAMES && found.provenance[2] == UNWIND_ORIGIN_FRAME_POINTER);
    walk.regs.mode = UNWIND_MODE_VM86;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(found.frames == 0 && found.end == UNWIND_END_NOT_WALKABLE);
    walk.regs.mode = 3;
    CHECK(unwind_walk_now(&walk, trace, &found) == UNWIND_ERROR_INVALID);
    free(trace);
    free(space);
}

static struct unwind_walk nmi_walk;
static struct unwind_trace *nmi_trace;
static struct unwind_space *nmi_changes;

// An NMI in the middle of a walk: memory that is in use is refused, other memory is taken.
static void nmi_that_walks(void) {
    struct unwind_stack found;
    struct unwind_walk walk = nmi_walk;

    in_nmi = true;
    walk.scratch = &scratch;
    CHECK(unwind_walk_now(&walk, nmi_trace, &found) == UNWIND_ERROR_IN_USE);
    walk.scratch = &nmi_scratch;
    walk.rows = &rows;
    CHECK(unwind_walk_now(&walk, nmi_trace, &found) == UNWIND_ERROR_IN_USE);
    walk.rows = NULL;
    CHECK(unwind_walk_now(&walk, nmi_trace, &found) == 0);
    check_whole(&found);
    in_nmi = false;
}

static void walks_in_nmis_have_memory_of_their_own(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(16);
    struct unwind_walk walk = new_walk(&target, 0);
    struct unwind_stack found;

    CHECK(unwind_space_add(space, &by_sframe) == 0 && unwind_space_add(space, &by_eh_frame) == 0);
    CHECK(unwind_space_add(space, &by_frame_pointers) == 0);
    nmi_walk = walk;
    nmi_trace = new_trace(16);
    walk.rows = &rows;
    target.nmi = nmi_that_walks;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0);
    CHECK(target.nmi == NULL);
    check_whole(&found);
    free(nmi_trace);
    free(trace);
    free(space);
}

static atomic_bool is_over;

static void *change_modules(void *unused) {
    (void)unused;
    for (int turn = 0; turn < 20000; turn++) {
        const struct unwind_module module = {.start = 0x601000, .end = 0x602000};

        CHECK(unwind_space_add(nmi_changes, &module) == 0);
        CHECK(unwind_space_remove(nmi_changes, 0x600000, 0x602000) == 1);
    }
    atomic_store(&is_over, true);
    return NULL;
}

static void modules_change_while_walks_look_them_up(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(16);
    struct unwind_walk walk = new_walk(&target, 0);
    struct unwind_stack found;
    pthread_t thread;

    walk.rows = &rows;
    CHECK(unwind_space_add(space, &by_sframe) == 0 && unwind_space_add(space, &by_eh_frame) == 0);
    CHECK(unwind_space_add(space, &by_frame_pointers) == 0);
    nmi_changes = space;
    CHECK(pthread_create(&thread, NULL, change_modules, NULL) == 0);
    while (!atomic_load(&is_over)) {
        CHECK(unwind_walk_now(&walk, trace, &found) == 0);
        // Overtaken again and again, a walk ends, and may be done again.
        if (!found.retryable) check_whole(&found);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    free(trace);
    free(space);
}

static void spaces_keep_modules(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct unwind_space *child = new_space(UNWIND_SPACE_BYTES_16);
    struct unwind_space *large = new_space(UNWIND_SPACE_BYTES_256);
    struct unwind_module module = {.start = 0x1000, .end = 0x2000};

    CHECK(unwind_space_add(space, &module) == 0);
    CHECK(unwind_space_add(space, &module) == UNWIND_ERROR_OVERLAP);
    module.end = module.start;
    CHECK(unwind_space_add(space, &module) == UNWIND_ERROR_EMPTY_RANGE);
    for (uint64_t at = 1; at < 16; at++) {
        module = (struct unwind_module){.start = 0x1000 + (at << 12), .end = 0x2000 + (at << 12)};
        CHECK(unwind_space_add(space, &module) == 0);
    }
    module = (struct unwind_module){.start = 0x100000, .end = 0x200000};
    CHECK(unwind_space_add(space, &module) == UNWIND_ERROR_FULL);
    module.format = 99;
    CHECK(unwind_space_add(space, &module) == UNWIND_ERROR_INVALID);
    // Held bytes that do not hold the table, or are too many.
    module = (struct unwind_module){.start = 0x100000, .end = 0x200000, .format = UNWIND_FORMAT_SFRAME};
    module.held = sframe;
    module.table = 0x1000;
    module.held_addr = 0x1001;
    module.held_len = sizeof(sframe);
    CHECK(unwind_space_add(large, &module) == UNWIND_ERROR_INVALID);
    module.held_addr = 0;
    CHECK(unwind_space_add(large, &module) == UNWIND_ERROR_INVALID);
    module.held_addr = 0x1000;
    module.held_len = 1 << 30;
    CHECK(unwind_space_add(large, &module) == UNWIND_ERROR_INVALID);

    // A fork, and an exec of the child.
    CHECK(unwind_space_copy(child, space) == 0);
    CHECK(unwind_space_remove(space, 0x2800, 0x4800) == 3);
    CHECK(unwind_space_remove(space, 0x2800, 0x4800) == 0);
    CHECK(unwind_space_remove(child, 0, UINT64_MAX) == 16);
    CHECK(unwind_space_copy(child, space) == 0 && unwind_space_clear(child) == 0);
    CHECK(unwind_space_remove(child, 0, UINT64_MAX) == 0);
    CHECK(unwind_space_copy(large, space) == UNWIND_ERROR_INVALID);
    free(space);
    free(child);
    free(large);
}

static void check_pointers(void) {
    static struct unwind_task task;
    static uint64_t words[600];
    struct unwind_task *odd_task = (void *)((char *)words + 1);
    struct unwind_trace *odd_trace = (void *)((char *)words + 4);
    struct unwind_space *odd_space = (void *)((char *)words + 2);
    struct unwind_drops drops, *odd_drops = (void *)((char *)words + 1);
    struct unwind_stack found;
    struct target target = {.space = NULL};
    struct unwind_walk walk = new_walk(&target, 0);
    uint64_t client, cookie, *odd = (void *)((char *)words + 1);
    struct unwind_trace *trace = new_trace(8);

    CHECK(unwind_register(NULL) == UNWIND_ERROR_NULL && unwind_register(odd) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_register(&client) == 0 && client != 0);
    CHECK(unwind_cancel(odd_task, client) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_request(NULL, client, &cookie) == UNWIND_ERROR_NULL);
    CHECK(unwind_request(odd_task, client, &cookie) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_request(&task, client, NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_request(&task, client, odd) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_request_anew(NULL, client, &cookie) == UNWIND_ERROR_NULL);
    CHECK(unwind_request_anew(&task, client, NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_cookie(NULL, &cookie) == UNWIND_ERROR_NULL);
    CHECK(unwind_cookie(&task, odd) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_deliver(NULL, trace, 0) == UNWIND_ERROR_NULL);
    CHECK(unwind_deliver(&task, odd_trace, 0) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_deliver(&task, trace, 2) == UNWIND_ERROR_INVALID);
    // Zeroes are no trace and no space.
    CHECK(unwind_deliver(&task, (void *)words, 0) == UNWIND_ERROR_INVALID);
    CHECK(unwind_space_clear((void *)words) == UNWIND_ERROR_INVALID);
    CHECK(unwind_abandon(NULL, 0) == UNWIND_ERROR_NULL && unwind_abandon(&task, 2) == UNWIND_ERROR_INVALID);
    CHECK(unwind_user_return(NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_user_return(odd_task) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_close(NULL) == UNWIND_ERROR_NULL && unwind_reopen(NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_get_drops(NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_get_drops(odd_drops) == UNWIND_ERROR_MISALIGNED && unwind_get_drops(&drops) == 0);

    CHECK(unwind_trace_init(NULL, 1000) == UNWIND_ERROR_NULL);
    CHECK(unwind_trace_init(odd_trace, 1000) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_trace_init((void *)words, UNWIND_TRACE_BYTES(8) - 1) == UNWIND_ERROR_TOO_SMALL);
    CHECK(unwind_walk_now(NULL, trace, &found) == UNWIND_ERROR_NULL);
    CHECK(unwind_walk_now(&walk, NULL, &found) == UNWIND_ERROR_NULL);
    CHECK(unwind_walk_now(&walk, odd_trace, &found) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_walk_now(&walk, trace, NULL) == UNWIND_ERROR_NULL);
    walk.scratch = NULL;
    CHECK(unwind_walk_now(&walk, trace, &found) == UNWIND_ERROR_NULL);
    walk.scratch = (void *)odd_trace;
    CHECK(unwind_walk_now(&walk, trace, &found) == UNWIND_ERROR_MISALIGNED);
    walk.scratch = &scratch;
    walk.rows = (void *)((char *)&rows + 32);
    CHECK(unwind_walk_now(&walk, trace, &found) == UNWIND_ERROR_MISALIGNED);
    walk.rows = NULL;
    walk.space = odd_space;
    CHECK(unwind_walk_now(&walk, trace, &found) == UNWIND_ERROR_MISALIGNED);
    // What is wrong leaves nothing in use. There is no memory to walk, but a first frame.
    walk.space = NULL;
    CHECK(unwind_walk_now(&walk, trace, &found) == 0 && found.frames == 1);

    CHECK(unwind_space_init(NULL, 9999) == UNWIND_ERROR_NULL);
    CHECK(unwind_space_init(odd_space, 9999) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_space_init((void *)words, UNWIND_SPACE_BYTES_16 - 1) == UNWIND_ERROR_TOO_SMALL);
    CHECK(unwind_space_add(NULL, &by_sframe) == UNWIND_ERROR_NULL);
    CHECK(unwind_space_init((void *)words, sizeof(words)) == 0);
    CHECK(unwind_space_add((void *)words, NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_space_add((void *)words, (void *)odd) == UNWIND_ERROR_MISALIGNED);
    CHECK(unwind_space_remove(NULL, 0, 1) == UNWIND_ERROR_NULL && unwind_space_clear(NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_space_copy(NULL, (void *)words) == UNWIND_ERROR_NULL);
    CHECK(unwind_space_copy((void *)words, NULL) == UNWIND_ERROR_NULL);
    CHECK(unwind_cancel(NULL, client) == 0);
    free(trace);
}

static void clients_come_and_go(void) {
    uint64_t clients[32], other;

    for (size_t at = 0; at < COUNT(clients); at++) CHECK(unwind_register(&clients[at]) == 0);
    CHECK(unwind_register(&other) == UNWIND_ERROR_TOO_MANY_CLIENTS);
    for (size_t at = 0; at < COUNT(clients); at++) CHECK(unwind_cancel(NULL, clients[at]) == 0);
    CHECK(unwind_cancel(NULL, clients[0]) == UNWIND_ERROR_UNKNOWN_CLIENT);
    CHECK(unwind_cancel(NULL, 0) == UNWIND_ERROR_UNKNOWN_CLIENT);
}

static struct task other_task;
static bool was_in_callback;

static void cancel_in_callback(struct task *task, const struct unwind_delivery *delivery) {
    was_in_callback = true;
    CHECK(unwind_cancel(&task->unwind, delivery->client) == UNWIND_ERROR_OWN_DELIVERY);
    // Of another task, as it says: it would wait, and gives up.
    patience = 3;
    CHECK(unwind_cancel(&other_task.unwind, delivery->client) == UNWIND_ERROR_STILL_RUNNING);
    // A delivery in a delivery has nothing to do, and the trace is in use.
    CHECK(unwind_deliver(&task->unwind, NULL, 0) == 0);
}

static void deliveries(void) {
    struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
    struct target target = new_target(space);
    struct unwind_trace *trace = new_trace(16);
    struct task task = {.walk = new_walk(&target, UNWIND_MAY_FAULT)};
    struct unwind_drops before, drops;
    uint64_t first, second, cookie, again, next;

    CHECK(unwind_space_add(space, &by_sframe) == 0 && unwind_space_add(space, &by_eh_frame) == 0);
    CHECK(unwind_space_add(space, &by_frame_pointers) == 0);
    CHECK(unwind_get_drops(&before) == 0);
    CHECK(unwind_register(&first) == 0 && unwind_register(&second) == 0);
    // Nothing is asked for.
    CHECK(unwind_deliver(&task.unwind, trace, 0) == 0);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);

    // An entry with a request in an NMI.
    in_nmi = true;
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED);
    in_nmi = false;
    CHECK(cookie != 0 && task.work && schedule_was_in_nmi);
    CHECK(unwind_request(&task.unwind, first, &again) == UNWIND_OUTCOME_ALREADY_PENDING && again == cookie);
    CHECK(unwind_cookie(&task.unwind, &again) == 0 && again == cookie);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_PENDING);
    last.calls = 0;
    last.in_callback = cancel_in_callback;
    CHECK(unwind_deliver(&task.unwind, trace, UNWIND_RECIPIENTS_REQUESTERS) == 1);
    last.in_callback = NULL;
    CHECK(was_in_callback && last.calls == 1 && task.walks == 1);
    CHECK(last.client == first && last.cookie == cookie && last.sample == UNWIND_SAMPLE_MATCHED);
    last.stack.pcs = last.pcs;
    last.stack.provenance = last.provenance;
    check_whole(&last.stack);
    CHECK(unwind_request(&task.unwind, first, &again) == UNWIND_OUTCOME_ALREADY_EXECUTED && again == cookie);
    // One more client of the entry: the trace has the stack.
    CHECK(unwind_request(&task.unwind, second, &again) == UNWIND_OUTCOME_QUEUED && again == cookie);
    CHECK(unwind_deliver(&task.unwind, trace, UNWIND_RECIPIENTS_REQUESTERS) == 1);
    CHECK(last.client == second && task.walks == 1);
    // The kernel has changed the stack: another cookie, and another walk.
    CHECK(unwind_request_anew(&task.unwind, first, &next) == UNWIND_OUTCOME_QUEUED && next != cookie);
    CHECK(unwind_deliver(&task.unwind, trace, UNWIND_RECIPIENTS_REQUESTERS) == 1);
    CHECK(last.cookie == next && task.walks == 2);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);

    // All clients, if one has asked.
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED && cookie != next);
    CHECK(unwind_deliver(&task.unwind, trace, UNWIND_RECIPIENTS_ALL_CLIENTS) == 2);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);

    // No trace, no walk, a part of a stack.
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED);
    CHECK(unwind_deliver(&task.unwind, NULL, 0) == 1);
    CHECK(last.sample == UNWIND_SAMPLE_STACK_LOST && last.stack.frames == 0);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);
    task.has_no_walk = true;
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED);
    CHECK(unwind_deliver(&task.unwind, trace, 0) == 1 && last.sample == UNWIND_SAMPLE_STACK_LOST);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);
    task.has_no_walk = false;
    target.segments[2].len = 8;
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED);
    CHECK(unwind_deliver(&task.unwind, trace, 0) == 1 && last.sample == UNWIND_SAMPLE_TRUNCATED);
    CHECK(unwind_user_return(&task.unwind) == UNWIND_RETURN_READY);
    target.segments[2].len = sizeof(stack);

    // Refusals.
    for (task.kind = UNWIND_TASK_KIND_KERNEL_THREAD; task.kind <= UNWIND_TASK_KIND_NO_USER_REGISTERS; task.kind++) {
        CHECK(unwind_request(&task.unwind, first, &cookie) == (int32_t)(16 + task.kind) && cookie == 0);
        CHECK(unwind_cookie(&task.unwind, &cookie) == (int32_t)(16 + task.kind) && cookie == 0);
    }
    task.kind = 77;
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_REFUSED_NO_USER_REGISTERS);
    task.kind = UNWIND_TASK_KIND_USER;
    task.cannot_schedule = true;
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_REFUSED_SCHEDULE_FAILED);
    task.cannot_schedule = false;
    CHECK(unwind_request(&task.unwind, first + 64, &cookie) == UNWIND_OUTCOME_REFUSED_UNKNOWN_CLIENT);

    // An exec with a request pending, then an exit without memory.
    CHECK(unwind_request(&task.unwind, first, &cookie) == UNWIND_OUTCOME_QUEUED);
    CHECK(unwind_close(&task.unwind) == 0);
    CHECK(unwind_request(&task.unwind, second, &again) == UNWIND_OUTCOME_REFUSED_EXITING);
    CHECK(unwind_reopen(&task.unwind) == UNWIND_RETURN_PENDING);
    CHECK(unwind_abandon(&task.unwind, UNWIND_LOSS_EXEC) == 1 && last.sample == UNWIND_SAMPLE_EXEC);
    CHECK(last.cookie == cookie && last.stack.frames == 0 && last.stack.pcs == NULL);
    CHECK(unwind_reopen(&task.unwind) == UNWIND_RETURN_READY);
    CHECK(unwind_request(&task.unwind, first, &again) == UNWIND_OUTCOME_QUEUED && again != cookie);
    CHECK(unwind_close(&task.unwind) == 0);
    CHECK(unwind_abandon(&task.unwind, UNWIND_LOSS_TASK_GONE) == 1 && last.sample == UNWIND_SAMPLE_TASK_GONE);

    // What a cancelled client has asked for is not delivered.
    task = (struct task){.walk = new_walk(&target, UNWIND_MAY_FAULT)};
    CHECK(unwind_request(&task.unwind, second, &cookie) == UNWIND_OUTCOME_QUEUED);
    CHECK(unwind_cancel(&task.unwind, second) == 0);
    CHECK(unwind_deliver(&task.unwind, trace, 0) == 0);
    CHECK(unwind_cancel(&task.unwind, first) == 0);
    CHECK(unwind_get_drops(&drops) == 0);
    CHECK(drops.no_trace == before.no_trace + 1 && drops.no_frames == before.no_frames + 1);
    CHECK(drops.truncated == before.truncated + 1 && drops.client_cancelled == before.client_cancelled + 1);
    CHECK(drops.task_gone == before.task_gone + 1 && drops.exec == before.exec + 1);
    CHECK(drops.kernel_thread == before.kernel_thread + 2 && drops.user_worker == before.user_worker + 2);
    CHECK(drops.exiting == before.exiting + 3 && drops.no_user_registers == before.no_user_registers + 3);
    CHECK(drops.schedule_failed == before.schedule_failed + 1);
    CHECK(drops.unknown_client == before.unknown_client + 1 && drops.unfinished == before.unfinished);
    free(trace);
    free(space);
}

// A host that cannot hook the last instruction: its work ends the entry.
static void work(struct task *task, struct unwind_trace *trace) {
    task->work = false;
    do
        unwind_deliver(&task->unwind, trace, UNWIND_RECIPIENTS_REQUESTERS);
    while (unwind_user_return(&task->unwind) == UNWIND_RETURN_PENDING);
}

static void a_host_without_a_hook_on_its_way_out_ends_entries_in_its_work(void) {
    struct target target = new_target(NULL);
    struct unwind_trace *trace = new_trace(16);
    struct task task = {.walk = new_walk(&target, UNWIND_MAY_FAULT)};
    uint64_t client, early, late;

    CHECK(unwind_register(&client) == 0);
    CHECK(unwind_request(&task.unwind, client, &early) == UNWIND_OUTCOME_QUEUED && task.work);
    last.calls = 0;
    work(&task, trace);
    CHECK(last.calls == 1 && last.cookie == early && !task.work);
    // Later in the same entry of the kernel: another cookie, and work that delivers it.
    CHECK(unwind_request(&task.unwind, client, &late) == UNWIND_OUTCOME_QUEUED && late != early && task.work);
    work(&task, trace);
    CHECK(last.calls == 2 && last.cookie == late);
    // Also what only asks for a cookie brings the task to its work.
    CHECK(unwind_cookie(&task.unwind, &early) == 0 && early != late && task.work);
    work(&task, trace);
    CHECK(last.calls == 2);
    CHECK(unwind_cookie(&task.unwind, &late) == 0 && early != late);
    CHECK(unwind_cancel(NULL, client) == 0);
    free(trace);
}

static uint64_t random_word(void) {
    static uint64_t state = 88172645463325252ull;

    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

// Tables, stacks and registers that hold anything, in the target's memory and in the host's.
static void hostile_targets_lose_their_stacks_and_no_more(void) {
    struct unwind_trace *trace = new_trace(40);
    uint64_t frames = 0, errors = 0;

    for (int turn = 0; turn < 20000; turn++) {
        // Of exactly their sizes, so that a read beyond is seen.
        uint8_t *table = malloc(sizeof(sframe)), *information = malloc(sizeof(eh_frame));
        uint64_t *words = malloc(sizeof(stack));
        struct unwind_space *space = new_space(UNWIND_SPACE_BYTES_16);
        struct target target = new_target(space);
        struct unwind_walk walk = new_walk(&target, turn & 1 ? UNWIND_MAY_FAULT : 0);
        struct unwind_module modules[] = {by_sframe, by_eh_frame, by_frame_pointers};
        struct unwind_stack found;

        CHECK(table && information && words);
        memcpy(table, sframe, sizeof(sframe));
        memcpy(information, eh_frame, sizeof(eh_frame));
        memcpy(words, stack, sizeof(stack));
        for (uint64_t change = random_word() % 4; change > 0; change--) {
            table[random_word() % sizeof(sframe)] = random_word();
            information[random_word() % 60] = random_word();
            information[0x100 + random_word() % sizeof(eh_frame_hdr)] = random_word();
            words[random_word() % COUNT(stack)] = random_word() >> random_word() % 64;
        }
        target.segments[0].bytes = table;
        target.segments[1].bytes = information;
        target.segments[2].bytes = words;
        if (turn & 2) {
            modules[0].held = table;
            modules[0].held_addr = by_sframe.table;
            modules[0].held_len = sizeof(sframe);
            modules[1].held = information;
            modules[1].held_addr = 0x401000;
            modules[1].held_len = sizeof(eh_frame);
        }
        for (size_t at = 0; at < COUNT(modules); at++) CHECK(unwind_space_add(space, &modules[at]) == 0);
        walk.rows = turn & 4 ? &rows : NULL;
        if (turn % 16 == 0) walk.regs.rip = random_word() >> random_word() % 64;
        if (turn % 16 == 1) walk.regs.rsp = random_word() >> random_word() % 64;
        if (turn % 16 == 2) walk.regs.mode = UNWIND_MODE_COMPAT;
        walk.regs.all = turn & 8;
        CHECK(unwind_walk_now(&walk, trace, &found) == 0);
        CHECK(found.frames <= 40 && found.end != UNWIND_END_NONE && target.reads < 20000);
        frames += found.frames;
        errors += found.end == UNWIND_END_TABLE;
        free(table);
        free(information);
        free(words);
        free(space);
    }
    CHECK(frames > 20000 && errors > 0);
    free(trace);
}

int main(void) {
    patience = UINT64_MAX;
    check_pointers();
    clients_come_and_go();
    spaces_keep_modules();
    walks_by_tables_in_target_memory_and_held();
    finds_modules_when_a_walk_meets_them();
    rows_of_one_space_are_not_used_for_another();
    a_walk_ends_where_a_table_is_still_to_come();
    code_that_is_known_to_have_no_table_costs_little();
    walks_code_of_32_bits();
    walks_in_nmis_have_memory_of_their_own();
    modules_change_while_walks_look_them_up();
    hostile_targets_lose_their_stacks_and_no_more();
    deliveries();
    a_host_without_a_hook_on_its_way_out_ends_entries_in_its_work();
    puts("all is as it should be");
    return 0;
}
