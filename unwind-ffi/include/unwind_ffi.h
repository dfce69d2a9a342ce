// Deferred unwinding and stack walks for hosts in C: kernels and their modules, hypervisors, programs.
// x86-64 and ia32 code, on x86-64.
//
// A host links libunwind_ffi.a and defines the functions at the end of this file, the hooks, whose names begin
// with unwind_host_. README.md beside this folder has the steps, docs/embedding.md the whole story.
//
// # Deferral
//
// A sample is taken where no user memory may be read. It asks for the stack (unwind_request) and records a cookie.
// On the way back to user code the task delivers (unwind_deliver): its stack is walked once, and the clients
// that asked get it with that cookie. Then unwind_user_return ends the kernel entry, and its cookie.
//
//     tracer starts, stops                unwind_register, unwind_cancel
//     sample                              unwind_request, and record the cookie
//     exit to user, work loop             unwind_deliver
//     exit to user, interrupts off        unwind_user_return; if it is pending, back to the work loop
//     fork                                the child's struct unwind_task is zeroes
//     exec, at the point of no return     unwind_close, then unwind_deliver or unwind_abandon
//     exec, new memory in place           unwind_space_clear, unwind_reopen
//     exit, memory in place               unwind_close, unwind_deliver
//     exit, memory gone                   unwind_close, unwind_abandon
//
// # Memory
//
// The library allocates nothing and keeps no pointer beyond a call, but for the held tables of modules. All
// structures are the host's, who may free them when no call uses them. Structures are at any address that is aligned
// to 8 bytes, struct unwind_rows to 64.
//
//     struct             one for each                        first
//     unwind_task        task                                zeroes
//     unwind_space       address space                       unwind_space_init
//     unwind_trace       task, or of a pool                  unwind_trace_init
//     unwind_scratch     walk at a time                      zeroes
//     unwind_rows        walk at a time, best of one space   zeroes
//
// A trace, a scratch and rows are used by one call at a time. A call that has interrupted another one on its
// CPU, or is made in a hook of it, gets UNWIND_ERROR_IN_USE. That two CPUs use one at a time nobody sees.
//
// # Contexts
//
// "Any" is also an NMI inside of any function here. "Task" may sleep if the hooks do. No function locks,
// allocates or faults by itself; only hooks that are said to may do so. No function takes or returns a pointer to
// a function.
//
// # Numbers
//
// Functions that can fail return a number less than 0, one of enum unwind_error. Numbers stay the same in later
// versions; new ones may come.
//
// Made by cbindgen of unwind-ffi/src.

#ifndef UNWIND_FFI_H
#define UNWIND_FFI_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

#define UNWIND_ALIGNED(bytes) __attribute__((aligned(bytes)))

// Bytes of a struct unwind_trace with room for that number of frames, or a few more.
#define UNWIND_TRACE_BYTES(frames) (sizeof(struct unwind_trace) + ((frames) + 7) / 8 * 144)

// Bit of a provenance: the address is where execution stands, and not a return address.
#define UNWIND_EXACT (1 << 3)

// Bit of a provenance: a row failed, and the frame pointer took its place.
#define UNWIND_AFTER_FAILURE (1 << 4)

// Bit of a provenance: the return address was a trampoline's. Never of this interface.
#define UNWIND_AFTER_TRAMPOLINE (1 << 5)

// Bit of a provenance: callers may be missing before this frame.
#define UNWIND_AFTER_GAP (1 << 6)

// Bit of a provenance: the frame pointer was taken as unchanged against the row.
#define UNWIND_FP_ASSUMED (1 << 7)

// Flag of a walk: reads go to unwind_host_read, which may fault and sleep, and modules that
// are not known to unwind_host_find_module. Without it reads go to unwind_host_read_nofault.
#define UNWIND_MAY_FAULT 1

// Flag of a walk: addresses have 57 bits and not 48.
#define UNWIND_FIVE_LEVEL 2

// Flag of a walk: the code has no red zone, as a kernel's.
#define UNWIND_NO_RED_ZONE 4

// Bytes of a space of 16 modules.
#define UNWIND_SPACE_BYTES_16 1328

// Bytes of a space of 64 modules.
#define UNWIND_SPACE_BYTES_64 5168

// Bytes of a space of 256 modules.
#define UNWIND_SPACE_BYTES_256 20528

// What a function returns that could not do what it was asked for: less than zero.
enum unwind_error {
  // A pointer is NULL that must not be.
  UNWIND_ERROR_NULL = -1,
  // A pointer is not aligned to 8 bytes, or to 64 where it points to rows.
  UNWIND_ERROR_MISALIGNED = -2,
  // There is less memory than it takes.
  UNWIND_ERROR_TOO_SMALL = -3,
  // The memory was not initialised, or a number is none of those that it may be.
  UNWIND_ERROR_INVALID = -4,
  // A trace, rows or a scratch are in use by a call that this one has interrupted, or is made in.
  UNWIND_ERROR_IN_USE = -5,
  // 32 clients are registered.
  UNWIND_ERROR_TOO_MANY_CLIENTS = -6,
  // The client is not registered, or someone else cancels it.
  UNWIND_ERROR_UNKNOWN_CLIENT = -7,
  // The task that calls is in a delivery to this client, and would wait for itself.
  UNWIND_ERROR_OWN_DELIVERY = -8,
  // unwind_host_relax has given up. The client is registered as before: call again to wait longer.
  UNWIND_ERROR_STILL_RUNNING = -9,
  // The module has no address.
  UNWIND_ERROR_EMPTY_RANGE = -10,
  // The module has an address of another one.
  UNWIND_ERROR_OVERLAP = -11,
  // There is no room for another module.
  UNWIND_ERROR_FULL = -12,
  // Another change of the space is under way.
  UNWIND_ERROR_BUSY = -13,
};

// What came of a request.
enum unwind_outcome {
  // A delivery to the client will follow.
  UNWIND_OUTCOME_QUEUED = 1,
  // The client has asked in this kernel entry before, and the delivery is still to come.
  UNWIND_OUTCOME_ALREADY_PENDING = 2,
  // The delivery to the client has gone out in this entry, with this cookie.
  UNWIND_OUTCOME_ALREADY_EXECUTED = 3,
  // There will be no delivery, as with all numbers from here on: the task is a kernel thread.
  UNWIND_OUTCOME_REFUSED_KERNEL_THREAD = 17,
  // The task never returns to user code.
  UNWIND_OUTCOME_REFUSED_USER_WORKER = 18,
  // The task is closed: it exits, or executes another program.
  UNWIND_OUTCOME_REFUSED_EXITING = 19,
  // The task has no saved user registers.
  UNWIND_OUTCOME_REFUSED_NO_USER_REGISTERS = 20,
  // Never returned here: NMIs may make a compare-exchange.
  UNWIND_OUTCOME_REFUSED_NMI_UNSAFE = 21,
  // The client is not registered.
  UNWIND_OUTCOME_REFUSED_UNKNOWN_CLIENT = 22,
  // unwind_host_schedule has failed.
  UNWIND_OUTCOME_REFUSED_SCHEDULE_FAILED = 23,
  // Never returned here: there is a cookie on each CPU.
  UNWIND_OUTCOME_REFUSED_NO_COOKIE = 24,
};

// How the samples end that have the cookie of a delivery.
enum unwind_sample {
  // The whole stack has come.
  UNWIND_SAMPLE_MATCHED = 1,
  // A part of the stack has come.
  UNWIND_SAMPLE_TRUNCATED = 2,
  // There is no stack: no trace was lent, or the walk has found no frame.
  UNWIND_SAMPLE_STACK_LOST = 3,
  // The task has ended before its stack was walked.
  UNWIND_SAMPLE_TASK_GONE = 4,
  // The task has executed another program before its stack was walked.
  UNWIND_SAMPLE_EXEC = 5,
  // Of a sample whose request was refused; no delivery has it.
  UNWIND_SAMPLE_INLINE = 6,
};

// Why a walk has no more frames.
enum unwind_end {
  // No walk was done.
  UNWIND_END_NONE = 0,
  // The last frame is the outermost one, as its row says.
  UNWIND_END_OUTERMOST = 1,
  // The last frame is the outermost one: its return address is zero.
  UNWIND_END_ZERO_RETURN_ADDRESS = 2,
  // There are more frames than the trace has room for.
  UNWIND_END_FRAME_LIMIT = 3,
  // Nothing knows the code of the last frame.
  UNWIND_END_NO_ROW = 4,
  // The task runs in a mode whose stacks are not walked.
  UNWIND_END_NOT_WALKABLE = 5,
  // The table of the last frame's code is malformed, or cannot be read.
  UNWIND_END_TABLE = 6,
  // A step failed, as with all numbers from here on: a word of the stack could not be read.
  UNWIND_END_UNREADABLE = 33,
  // The caller's frame would not be above this one.
  UNWIND_END_NO_PROGRESS = 34,
  // The frame's address is not a multiple of a word.
  UNWIND_END_MISALIGNED = 35,
  // The frame is above the stack's end.
  UNWIND_END_BEYOND_STACK = 36,
  // The return address can be none.
  UNWIND_END_NON_CANONICAL = 37,
  // The return address is not code. Never of this interface.
  UNWIND_END_NOT_CODE = 38,
  // The return address is zero, and a guess led there.
  UNWIND_END_STEP_ZERO_RETURN_ADDRESS = 39,
  // The frame pointer is zero.
  UNWIND_END_ZERO_FRAME_POINTER = 40,
  // The frame pointer is below the stack.
  UNWIND_END_FRAME_POINTER_BELOW_STACK = 41,
  // A register is needed that is not known in this frame.
  UNWIND_END_UNKNOWN_REGISTER = 42,
  // An address is beyond the address space.
  UNWIND_END_OVERFLOW = 43,
  // A row has a rule that cannot be right.
  UNWIND_END_BAD_RULE = 44,
  // A signal trampoline that no kernel makes.
  UNWIND_END_UNKNOWN_TRAMPOLINE = 45,
  // The return address is that of a probe. Never of this interface.
  UNWIND_END_RETURN_PROBE = 46,
  // The caller is beside a zero that may be the end of the stack.
  UNWIND_END_CALLER_BESIDE_ZERO = 47,
};

// Who has found the row that led to a frame: the low three bits of its provenance.
enum unwind_origin {
  // The registers of the walk: the first frame.
  UNWIND_ORIGIN_REGISTERS = 0,
  // An SFrame table.
  UNWIND_ORIGIN_TABLE = 1,
  // Call frame information, or an SFrame table that was made of it.
  UNWIND_ORIGIN_CALL_FRAMES = 2,
  // The frame pointer.
  UNWIND_ORIGIN_FRAME_POINTER = 3,
  // The instructions.
  UNWIND_ORIGIN_INSTRUCTIONS = 4,
  // The registers that the kernel saved for a signal handler.
  UNWIND_ORIGIN_SIGNAL_CONTEXT = 5,
  // Never of this interface.
  UNWIND_ORIGIN_BRANCH_RECORD = 6,
  // Never of this interface.
  UNWIND_ORIGIN_HOST = 7,
};

// What a task is when its stack is asked for.
enum unwind_task_kind {
  // It runs user code, and will return to it.
  UNWIND_TASK_KIND_USER = 0,
  // It has no user code.
  UNWIND_TASK_KIND_KERNEL_THREAD = 1,
  // It has the memory of a user task but never returns to user code, as an I/O worker.
  UNWIND_TASK_KIND_USER_WORKER = 2,
  // It will not return to user code any more.
  UNWIND_TASK_KIND_EXITING = 3,
  // It has no saved user registers, or nothing would deliver.
  UNWIND_TASK_KIND_NO_USER_REGISTERS = 4,
};

// What a read of the target's memory comes to.
enum unwind_read {
  // All bytes were read.
  UNWIND_READ_DONE = 0,
  // The page is absent, and was not brought in: the same read may work in a walk that may fault.
  UNWIND_READ_ABSENT = 1,
  // Nothing is mapped there, or it is not the target's to read. So is any other number.
  UNWIND_READ_INVALID = 2,
};

// What is known of the code of a module.
enum unwind_format {
  // It is known to have no table: nobody is asked again.
  UNWIND_FORMAT_NONE = 0,
  // `.sframe`, versions 1 to 3, at `table`, in `table_len` bytes.
  UNWIND_FORMAT_SFRAME = 1,
  // `.eh_frame`, found by its search table `.eh_frame_hdr`, which is at `table`.
  UNWIND_FORMAT_EH_FRAME = 2,
  // All its functions keep a frame pointer, for which the host vouches.
  UNWIND_FORMAT_FRAME_POINTERS = 3,
  // A table in SFrame's format that was made of call frame information, as `unwind sframe
  // build` does: as Sframe, but its frames say so.
  UNWIND_FORMAT_SFRAME_OF_CALL_FRAMES = 4,
  // Its table is still to come: a walk ends there with UNWIND_END_TABLE and may be done again; no caller is guessed.
  UNWIND_FORMAT_AWAITED = 5,
};

// The code that registers are of.
enum unwind_mode {
  // 64-bit code.
  UNWIND_MODE_LONG = 0,
  // 32-bit code, in flat segments unless bases are given.
  UNWIND_MODE_COMPAT = 1,
  // VM86, whose stacks are not walked: UNWIND_END_NOT_WALKABLE.
  UNWIND_MODE_VM86 = 2,
};

// To whom a delivery goes.
enum unwind_recipients {
  // To the clients that asked.
  UNWIND_RECIPIENTS_REQUESTERS = 0,
  // To all clients if one of them asked: each compares the cookie with those it knows.
  UNWIND_RECIPIENTS_ALL_CLIENTS = 1,
};

// Why there is no stack to walk.
enum unwind_loss {
  // The task has ended, and its memory with it.
  UNWIND_LOSS_TASK_GONE = 0,
  // The task has executed another program.
  UNWIND_LOSS_EXEC = 1,
};

// Whether a task may continue to user code.
enum unwind_return {
  // It may, and the kernel entry is over.
  UNWIND_RETURN_READY = 0,
  // Something is to be delivered first; the entry continues.
  UNWIND_RETURN_PENDING = 1,
};

// What a task carries, in the host's structure of the task. All zeroes is a new one: a task that
// is created, also by fork, begins with zeroes before anyone may ask for its stack. It goes with the task,
// once that is closed and nobody asks for its stack any more; there is nothing to free in it.
struct unwind_task {
  // Nobody's but the library's.
  uint64_t words[6];
};

// Memory for one stack, of UNWIND_TRACE_BYTES bytes, made by unwind_trace_init.
//
// A delivery that is lent the trace which has the stack of this kernel entry does not walk again, so
// one a task is walked once for each cookie; one of a pool once for each delivery.
struct unwind_trace {
  // Nobody's but the library's. Frames come after it.
  uint64_t words[8];
};

// How many samples and stacks were lost, by reason.
struct unwind_drops {
  // Requests refused, as enum unwind_outcome says.
  uint64_t kernel_thread;
  // Likewise.
  uint64_t user_worker;
  // Likewise.
  uint64_t exiting;
  // Likewise.
  uint64_t no_user_registers;
  // Likewise.
  uint64_t unknown_client;
  // Likewise.
  uint64_t schedule_failed;
  // Requests that were granted and whose client was then cancelled.
  uint64_t client_cancelled;
  // Deliveries without a stack, since no trace was lent.
  uint64_t no_trace;
  // Deliveries without a stack, since the walk has found no frame.
  uint64_t no_frames;
  // Deliveries of a part of the stack.
  uint64_t truncated;
  // Deliveries without a stack, since the task has ended.
  uint64_t task_gone;
  // Deliveries without a stack, since the task has executed another program.
  uint64_t exec;
  // Deliveries that had not come to their end when their task continued: a mistake of the host.
  uint64_t unfinished;
};

// The registers that a walk begins with. 32-bit code has eax in `rax` and so on.
struct unwind_registers {
  uint64_t rip;
  uint64_t rsp;
  uint64_t rbp;
  uint64_t rax;
  uint64_t rbx;
  uint64_t rcx;
  uint64_t rdx;
  uint64_t rsi;
  uint64_t rdi;
  uint64_t r8;
  uint64_t r9;
  uint64_t r10;
  uint64_t r11;
  uint64_t r12;
  uint64_t r13;
  uint64_t r14;
  uint64_t r15;
  // One of enum unwind_mode.
  uint32_t mode;
  // Nonzero: all registers are known; otherwise only rip, rsp and rbp are. Some functions need others,
  // those that align their stack, say.
  uint32_t all;
  // The linear base of the code segment, of 32-bit code.
  uint32_t code_base;
  // The linear base of the stack segment, of 32-bit code.
  uint32_t stack_base;
};

// The modules of an address space, of UNWIND_SPACE_BYTES_16, _64 or _256 bytes for as many modules,
// made by unwind_space_init. Looked up in any context, also while it changes. Nothing to free.
struct unwind_space {
  // Nobody's but the library's. Modules come after it.
  uint64_t words[2];
};

// Rows that walks keep, for later ones: a frame whose row is kept takes a tenth of the time. All
// zeroes is an empty one. It goes with the walks of one space: another one's empty it. Optional.
struct UNWIND_ALIGNED(64) unwind_rows {
  // Nobody's but the library's.
  uint64_t words[272];
};

// Memory that one walk works in. All zeroes is a new one. Nothing in it is of use after the walk.
struct unwind_scratch {
  // Nobody's but the library's.
  uint64_t words[256];
};

// One walk.
struct unwind_walk {
  // What it begins with.
  struct unwind_registers regs;
  // The modules. NULL: there are none, and the walk goes by instructions and frame pointers.
  const struct unwind_space *space;
  // NULL, or rows for this walk alone.
  struct unwind_rows *rows;
  // For this walk alone: an NMI that walks has its own, one for each NMI that may be on top of
  // another.
  struct unwind_scratch *scratch;
  // Handed to the hooks that read memory and find modules.
  void *context;
  // The value of the stack pointer when the stack is empty, or 0 if that is not known.
  uint64_t stack_end;
  // UNWIND_MAY_FAULT, UNWIND_FIVE_LEVEL, UNWIND_NO_RED_ZONE.
  uint32_t flags;
};

// A stack that was walked. What it points to is in the trace, until that is used again.
struct unwind_stack {
  // The addresses, innermost first: all but the first are return addresses, unless UNWIND_EXACT says otherwise.
  const uint64_t *pcs;
  // How each was found: the low three bits are one of enum unwind_origin.
  const uint8_t *provenance;
  // How many there are.
  uint32_t frames;
  // Why there are no more: one of enum unwind_end.
  uint8_t end;
  // These are all frames, and no guess led to any.
  bool complete;
  // A walk that may fault may get further: memory was absent.
  bool retryable;
  // What is wrong with the table of UNWIND_END_TABLE. Below 512 `code` of `RemoteError` of the SFrame
  // crate, 512 if the modules changed all the time, 513 if it is still to come, from 1024 on `code` of
  // `RemoteCfiError`.
  uint16_t table_code;
};

// Code, and what is known of it: an executable mapping, usually.
struct unwind_module {
  // The code's first address in the target.
  uint64_t start;
  // The address after the code.
  uint64_t end;
  // Where the target has `.sframe` or `.eh_frame_hdr`: where it is loaded. Of an SFrame table that
  // is part of no file, the address it was made for, plus how far the code is loaded above its
  // linked addresses.
  uint64_t table;
  // How many bytes an SFrame table in the target's memory has at most.
  uint32_t table_len;
  // One of enum unwind_format.
  uint32_t format;
  // NULL: the table is read in the target's memory when a walk needs it. Otherwise the host has
  // the bytes of the table here, or those of the part of the file with `.eh_frame_hdr` and `.eh_frame`.
  // The library uses them where they are: they stay and do not change until the module is removed and
  // each walk that began before that has ended.
  const void *held;
  // Where the target would have the first of them: `table`, or less than 16 MiB below it.
  uint64_t held_addr;
  // How many there are: less than 1 GiB.
  uint32_t held_len;
};

// What a client is called with.
struct unwind_delivery {
  // Who is called.
  uint64_t client;
  // That of the samples which the stack belongs to.
  uint64_t cookie;
  // One of enum unwind_sample.
  uint32_t sample;
  // Without frames unless `sample` is UNWIND_SAMPLE_MATCHED or UNWIND_SAMPLE_TRUNCATED.
  struct unwind_stack stack;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Adds a client: a tracer, which multiplexes inside. There are 32 at a time. `client` gets its number,
// which is never 0 and never used again: copies of it that are out of date are refused. Returns 0, or
// UNWIND_ERROR_TOO_MANY_CLIENTS.
//
// Task or interrupt context; does not wait.
int32_t unwind_register(uint64_t *client);

// Removes a client. When it returns 0, no delivery to the client runs and none will start: its data may
// be freed. `caller` is the task that calls, or NULL if that has no block. Waits for deliveries to this client
// on other tasks, by unwind_host_relax. Other numbers: UNWIND_ERROR_UNKNOWN_CLIENT, _OWN_DELIVERY,
// _STILL_RUNNING; the client is registered as before, if it was.
//
// Task context.
int32_t unwind_cancel(struct unwind_task *caller, uint64_t client);

// Asks for the user stack of a task, the one that runs on this CPU. Returns one of enum unwind_outcome, or an
// error, less than 0. `cookie` gets what the sample records in place of the stack, or 0 if there is none.
//
// Any context, also an NMI inside of any function here. Neither locks, allocates nor faults.
int32_t unwind_request(struct unwind_task *task, uint64_t client, uint64_t *cookie);

// As unwind_request, but for the stack as it is now, also if the client was served in this kernel entry:
// for a sample after the kernel itself has changed the user stack or its registers, by a signal frame, say.
// There are two stacks in one entry at most.
//
// Task context, by the task itself.
int32_t unwind_request_anew(struct unwind_task *task, uint64_t client, uint64_t *cookie);

// The cookie of the kernel entry that the task is in, without a request for its stack. Returns 0, or as
// unwind_request where that is refused.
//
// Any context, as unwind_request.
int32_t unwind_cookie(struct unwind_task *task, uint64_t *cookie);

// Delivers what was asked for in this kernel entry: the stack is walked once, by unwind_host_walk, and each
// client is called by unwind_host_deliver. `recipients` is one of enum unwind_recipients. Returns how many clients
// were called, or an error.
//
// `trace` is the task's or one of a pool, and nobody else's meanwhile. NULL: there is no memory, and clients
// are told UNWIND_SAMPLE_STACK_LOST.
//
// In the task, on its way to user code, before a signal frame is set up, and before exec and exit take the memory
// away. It may fault and sleep as far as the hooks do. Not within a delivery of the same task. After an error
// nothing was delivered, and unwind_user_return is pending again: deliver with NULL.
int32_t unwind_deliver(struct unwind_task *task,
                       struct unwind_trace *trace,
                       uint32_t recipients);

// Tells those who asked that there is no stack any more, by unwind_host_deliver. `loss` is one of enum
// unwind_loss. Returns how many clients were called, or an error.
//
// By the task itself, or by who ends it once it does not run any more. Task context.
int32_t unwind_abandon(struct unwind_task *task, uint32_t loss);

// Ends the kernel entry, and its cookie, after the deliveries. UNWIND_RETURN_READY: the task may continue to
// user code. UNWIND_RETURN_PENDING: something was asked for meanwhile; deliver, and call this again. Less than 0:
// an error.
//
// By the task itself, on its way to user code, interrupts off. One load and one branch if nothing was asked
// for, and no hook is called.
int32_t unwind_user_return(struct unwind_task *task);

// Refuses requests from here on: at an exit, or at the point of no return of an exec. What was asked for
// before is still to be delivered or abandoned. Returns 0, or an error.
//
// As unwind_user_return, or by who ends the task once it does not run any more.
int32_t unwind_close(struct unwind_task *task);

// Grants requests again after unwind_close, with new cookies: after an exec. UNWIND_RETURN_PENDING: something
// is neither delivered nor abandoned, and nothing was done. Less than 0: an error.
//
// By the task itself.
int32_t unwind_reopen(struct unwind_task *task);

// How many samples and stacks were lost so far. Returns 0, or an error.
//
// Any context.
int32_t unwind_get_drops(struct unwind_drops *drops);

// Makes a trace in `bytes` bytes of memory: of as many frames as there is room for, a multiple of eight.
// Returns 0, or an error.
//
// Any context. Nobody else uses the memory meanwhile.
int32_t unwind_trace_init(struct unwind_trace *memory, size_t bytes);

// Walks a stack into a trace, and says in `stack` what it has found. Returns 0, or an error.
//
// With UNWIND_MAY_FAULT task context; without it any, an NMI included: a walk there has a trace, a scratch and
// rows that no other context uses.
int32_t unwind_walk_now(const struct unwind_walk *walk, struct unwind_trace *trace, struct unwind_stack *stack);

// Makes a space without modules in `bytes` bytes of memory: of as many modules as there is room for, 16,
// 64 or 256. Returns 0, or an error.
//
// Any context. Nobody else uses the memory meanwhile.
int32_t unwind_space_init(struct unwind_space *memory, size_t bytes);

// Adds a module: after an mmap of code, say, or in unwind_host_find_module. Returns 0, or an
// error, and the space is as it was: UNWIND_ERROR_OVERLAP, UNWIND_ERROR_FULL, UNWIND_ERROR_BUSY among others.
//
// Task context. Walks in any context may look up meanwhile; other changes are refused as busy, so have
// a lock around these calls where they may meet.
int32_t unwind_space_add(struct unwind_space *space, const struct unwind_module *module);

// Removes the modules that have an address from `start` up to `end`, which is exclusive: before code is
// unmapped. Returns how many there were, or an error.
//
// Task context, as unwind_space_add.
int32_t unwind_space_remove(struct unwind_space *space, uint64_t start, uint64_t end);

// Removes all modules: at an exec. Returns 0, or an error.
//
// Task context, as unwind_space_add.
int32_t unwind_space_clear(struct unwind_space *space);

// Makes the modules of `child` those of `parent`, of the same size: at a fork. Returns 0, or an error.
//
// Task context, as unwind_space_add. What the parent's modules hold has to stay for the child's, too.
int32_t unwind_space_copy(struct unwind_space *child, struct unwind_space *parent);

// Has the task deliver before it runs user code. When it returns 0, the task will not get back
// to user code without a delivery. It does not matter how often it is called; a delivery that then
// finds nothing is in order. Another number: it cannot be done, and the request is refused.
//
// `in_nmi` says whether this CPU handles an NMI, for hosts that cannot do there what they do elsewhere.
//
// Any context.
extern int32_t unwind_host_schedule(struct unwind_task *task, int32_t in_nmi);

// One of enum unwind_task_kind: what the task is at this moment.
//
// Any context.
extern uint32_t unwind_host_task_kind(struct unwind_task *task);

// Nonzero if this CPU handles an NMI.
//
// Any context.
extern int32_t unwind_host_in_nmi(void);

// The number of this CPU. It may be out of date when it is used: it chooses counters.
//
// Any context.
extern uint32_t unwind_host_cpu(void);

// Called again and again by unwind_cancel while a delivery to the client runs; `turn` is 0 the
// first time and rises. It spins, yields or sleeps, and returns nonzero to give up.
//
// The context of unwind_cancel.
extern int32_t unwind_host_relax(uint64_t turn);

// Fills in the walk of a delivery, which is all zeroes before: the registers that the task's kernel
// entry saved, a scratch, and what else there is. Returns 0, or another number if there can be no
// walk: clients are told that the stack is lost.
//
// The context of unwind_deliver. It calls no function here but those of spaces. Where a pointer in the
// walk is wrong or in use there is no walk, either.
extern int32_t unwind_host_walk(struct unwind_task *task, struct unwind_walk *walk);

// Calls a client. `delivery` and the stack in it are there until this returns.
//
// The context of unwind_deliver or unwind_abandon. It may allocate, sleep, request, register, and cancel
// other clients. It delivers and walks nothing with the trace that unwind_deliver was lent.
extern void unwind_host_deliver(struct unwind_task *task, const struct unwind_delivery *delivery);

// Copies `len` bytes at `addr` of the target to `to`, all or nothing: one of enum unwind_read.
// It may fault pages in and sleep. Most reads are of 8 bytes: have a short way for them.
//
// `addr` may be anything. It must refuse all that is not the target's to read, a kernel's addresses
// above all.
//
// The context of a walk with UNWIND_MAY_FAULT. `context` is the walk's.
extern int32_t unwind_host_read(void *context, void *to, uint64_t addr, size_t len);

// The same without a fault: UNWIND_READ_ABSENT where there is no page.
//
// The context of any other walk.
extern int32_t unwind_host_read_nofault(void *context, void *to, uint64_t addr, size_t len);

// Looks for the module with the code at `pc`, when a walk first meets it. If it adds one
// by unwind_space_add, it returns 1, and the walk looks again; otherwise 0, and is asked again by
// the next walk. Code that has no table is best added, too: as UNWIND_FORMAT_NONE. Then it costs a
// walk no more than other code.
//
// The context of a walk with UNWIND_MAY_FAULT; no other walk calls it.
extern int32_t unwind_host_find_module(void *context, uint64_t pc);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNWIND_FFI_H */
