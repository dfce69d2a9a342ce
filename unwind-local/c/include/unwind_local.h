// Backtraces of the calling process that cannot hurt it. Linux, x86-64 or i386, glibc 2.35 or later, or
// musl.
//
// Made by cbindgen of unwind-local/c/src/lib.rs.

#ifndef UNWIND_LOCAL_H
#define UNWIND_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Each function keeps a frame pointer.
#define UNWIND_LOCAL_FRAME_POINTERS 0

// An SFrame section, whose addresses count from where it lies.
#define UNWIND_LOCAL_SFRAME 1

// An `.eh_frame` section, as `__register_frame` takes it.
#define UNWIND_LOCAL_EH_FRAME 2

// Each function keeps a frame pointer while it calls another one, as V8's do. A stack that was
// interrupted in this code is complete only where its instructions prove who its caller is.
#define UNWIND_LOCAL_CALLER_FRAME_POINTERS 3

// Why a walk has no more frames.
typedef struct {
  // 1: the outermost frame, by its table. 2: the outermost frame, whose return address is
  // zero. 3: no room for more, or 1,024 frames, which end each walk. 4: nothing tells of the
  // code. 5: not walkable. 6: a malformed table. 33 to 47: a step failed. Numbers stay the same
  // in later versions.
  uint8_t code;
  // The addresses are all frames up to the outermost one, by its table, and no guess led
  // to any.
  bool complete;
} unwind_local_end;

// A frame, and how it was found.
typedef struct {
  // The address: a return address unless bit 3 of `provenance` is set.
  size_t address;
  // Bits 0 to 2: by 0 registers, 1 a table, 2 `.eh_frame`, 3 a frame pointer,
  // 4 instructions, 5 a signal's context. Bit 3: the interrupted address itself. Bit 4:
  // after a failure. Bit 5: after a trampoline. Bit 6: callers may be missing before it.
  // Bit 7: the frame pointer was taken as unchanged.
  uint8_t provenance;
} unwind_local_frame;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes walks fast: until then they keep no rows. Once, early in the program; with musl also
// after each dlopen, as the objects are listed that are loaded at that time. In a program that is
// linked by -static nothing tells of the code before.
//
// NOT async-signal-safe: it locks, allocates, and loads and unloads an object.
void unwind_local_prepare(void);

// Whether walks keep rows.
//
// Async-signal-safe.
bool unwind_local_keeps_rows(void);

// Writes at most `capacity` return addresses of the callers, innermost first, and returns
// how many. The first one is in the function that calls this. `end` may be NULL.
//
// Async-signal-safe: in a handler that interrupted anything, malloc, dlopen, dlclose, fork,
// a thread's start or end, an exception being thrown, or another backtrace. It takes no
// lock, allocates nothing and keeps errno.
//
// # Safety
//
// There is room for that many addresses.
size_t unwind_local_backtrace(void **addresses, size_t capacity, unwind_local_end *end);

// The same for what a signal interrupted: first the interrupted address. `context` is the
// `ucontext_t` that the kernel gave the handler in which the calling thread runs.
//
// Async-signal-safe, as unwind_local_backtrace.
//
// # Safety
//
// There is room for that many addresses, and the context is such a one.
size_t unwind_local_backtrace_of(const void *context,
                                 void **addresses,
                                 size_t capacity,
                                 unwind_local_end *end);

// The same as unwind_local_backtrace, or with a context as unwind_local_backtrace_of, with
// how each frame was found. `context` may be NULL.
//
// Async-signal-safe, as unwind_local_backtrace.
//
// # Safety
//
// There is room for that many frames, and a context is one of the kernel's.
size_t unwind_local_frames(const void *context,
                           unwind_local_frame *frames,
                           size_t capacity,
                           unwind_local_end *end);

// Tells of code that the program has made, such as a JIT compiler's: stacks are walked past
// its frames by what is of `kind`, one of UNWIND_LOCAL_FRAME_POINTERS and
// UNWIND_LOCAL_CALLER_FRAME_POINTERS (where `table` is NULL), UNWIND_LOCAL_SFRAME and
// UNWIND_LOCAL_EH_FRAME. Returns a number to forget it by, or 0 if there
// are 256 ranges already or the kind is unknown.
//
// Async-signal-safe. No walk waits for it.
//
// # Safety
//
// Until the range is forgotten the table stays and does not change; when it is forgotten no
// function in it has a frame on any stack.
uint64_t unwind_local_tell_code(const void *code,
                                size_t size,
                                int kind,
                                const void *table,
                                size_t table_size);

// Forgets the code with this number; `false` if there is none.
//
// Async-signal-safe.
bool unwind_local_forget_code(uint64_t number);

// Writes the name of the function with this address of code to `name`, which has `size` bytes: as the
// object's file has it, so also of a function that the object does not export. Returns whether there
// is one; it ends with a zero, and is cut where there is no room. `offset`, unless NULL, gets how far
// in the function the address is. For a return address pass the address before it.
//
// Not for signal handlers: it reads a file and asks the dynamic linker.
//
// # Safety
//
// There is room for that many bytes, and the object with the code stays loaded meanwhile.
bool unwind_local_name(const void *address,
                       char *name,
                       size_t size,
                       size_t *offset);

// What the code of an end says, in English.
//
// Async-signal-safe.
const char *unwind_local_end_text(uint8_t code);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNWIND_LOCAL_H */
