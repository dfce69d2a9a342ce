//! The end of `unwind stack --help`.

pub(super) const LONG_HELP: &str = "\
A process is held while what its stacks need is copied: registers, mappings, and each
stack from its pointer on. It continues before the stacks are walked. Where a walk
needs what was not copied, all is copied again with that, up to seven times more; what
is lacking then ends a stack as `not-captured`. With --live the stacks are walked while
the process is held, which takes longer and lacks nothing.

With --no-stop nothing is traced or stopped, so that no system call ends and a process
that a debugger has stopped is shown, too. /proc/PID/syscall tells the pc and the stack
pointer of a thread that sleeps, and no other register: a walk that needs one, as that of
a function that keeps a frame pointer and is called without a frame that saved it, ends
there as `step`. Each thread is looked at again after its stack is copied: one that did
not sleep has no frames and ends as `running`, one that ran meanwhile, or at whose time
other code was mapped, as `changed`. The frames shown are of one sleep, but other threads
may have written to them, so no stack is complete.

--core takes the dump of a machine, too: of QEMU's `dump-guest-memory`, or a Linux kernel's
/proc/vmcore. Each CPU is shown as `unwind guest` shows a vCPU, with --json as well, by the
files that --symbols names, and the user code that has entered the kernel follows. Of /proc/vmcore
the thread that each CPU ran leads to its page tables. The CPU on which the kernel has crashed tells
the registers of a function for which the kernel has no row: frames of the kernel are missing then, and
the stack is not complete.

A process that was held continues where it was. System calls in which it waits do
so, too, but for those that Linux ends after any stop: epoll_wait, semop,
semtimedop, sigwaitinfo and sigtimedwait, and calls on sockets with a time limit
(SO_RCVTIMEO, SO_SNDTIMEO), fail once with EINTR, as under any debugger; see
signal(7).

How a frame was found, in the third column:
  registers  it is what the thread executes
  sframe     by the SFrame table of the code that it called
  cfi        by that code's .eh_frame or .debug_frame
  fp         by a frame pointer
  code       by the instructions at the function's entry or exit
  signal     by the registers that the kernel saved for a signal handler
A `!` after it: the table of the code that it called has a row which could not be
used. A `~`: that row says where the frame pointer was saved, which is below the
stack pointer and could not be read, so the register was taken as unchanged.

`callers may be missing here` stands between two frames where the step from one
to the other was a guess. Code without a table that keeps no frame pointer has
its caller's in the register, and a step by that leads past the caller.
With --trust-fp such a step counts as right.

Files, lines and functions that are inlined come from the DWARF of the file, or of
the file that it was stripped into: below --debug-dir and /usr/lib/debug by its build
id, or by the name in .gnu_debuglink, whose checksum has to be right; with --debuginfod
from servers, once the target continues. `inlined` in
the third column is a function without a frame of its own, whose code is in the frame
below. DWARF is read once the target continues, by another process, which may use 2 GiB
of memory and 10 seconds a file; what it could not read is told. Parts of it may be in
further files: in .dwo files where the compiler wrote them or beside the program, in
PROGRAM.dwp, and in the file that dwz made, where its link says or below /usr/lib/debug.

Where code has changed to another stack, as Go's runtime does from that of a goroutine
to that of its thread, no table says where its caller is. The instructions after its
call do, up to the `ret`: in `runtime.systemstack` and `runtime.asmcgocall`, and in the
functions that --stack-switch names. They are followed, as far as they only load, move
and add. A goroutine whose stack grows continues where `runtime.morestack` has saved it.
With `runtime.mcall` a stack is complete, as in Go's own traces: nothing there waits for
a return. Only `--method auto` does all this.

The calls that CPython executes, 3.9 to 3.14, and V8 in node 18, 20, 22 and 24 stand before
the native frame that executes them, with `python`, `javascript` or `wasm` in the third
column: function, file and line. They are read while the process is held: Python's for some
tens of microseconds; node is held until its stacks are walked. With --native they are not
read. A function of JavaScript whose line V8 does not keep has that where it starts. With
--interpreted nothing else is shown. If not each has its native frame, and each frame of
the evaluator its calls, a line says why, and the stack is not complete. Of a core they are
shown, too; with --no-stop they are not. docs/interpreters.md says more.

A stack is complete if its last frame is known to be the outermost one and no
callers may be missing. Frame pointers alone cannot tell.

On a terminal, frames that tables tell are green, those by frame pointers or instructions yellow,
calls of Python and JavaScript cyan, and what is missing red; not if NO_COLOR is set.

JSON (its JSON Schema: docs/schema/stack.json), with names escaped as
`unwind --help` says: one object with
  schema    2; rises when a field changes its meaning or goes
  process, program, method
  no_stop   nothing was stopped, and no stack counts as complete
  threads   a list, each with
    thread, name, arch (`x86-64`, `ia32` or null), signal (of a core, or null)
    frames  innermost first, each with
      pc, sp            hexadecimal text
      exact             the pc is an interrupted one, not a return address
      found_by          `registers`, `sframe`, `cfi`, `fp`, `code`, `signal` or
                        `other`
      after_failure     the row of the callee in a table could not be used
      after_gap         callers may be missing between the frame before and this
      fp_assumed        the frame pointer was taken as unchanged
      object            path of the file with the code, `[vdso]`, `[anonymous]`
                        for code without a file, or null
      object_pc         the pc as linked, hexadecimal text or null
      function          demangled name, with parameters but for --short, or null
      mangled           the name in the file where it was mangled, or null
      function_offset   bytes from the function's start to the pc, or null
      file, line, column  where in the source that is, or null
      text              with --source, where it is there: the line of the source, without
                        blanks around it; inlined and interpreted functions have it, too
      inlined           functions whose code is inlined there, innermost first, each
                        with function, mangled, file, line and column as above: the
                        first is where the pc is, the frame's own file and line is
                        where it calls the last
      interpreted       only of an interpreter's evaluator: the calls that the frame
                        executes, innermost first, each with language (`python`,
                        `javascript` or `wasm`), kind (`interpreted`, `baseline`,
                        `maglev`, `optimized`, `inlined`, `builtin` or `wasm`),
                        function, file, line, and start (the line where the function
                        starts), each or null
    interpreted         null, or interpreter (`CPython 3.11`), complete, text (why not)
                        and unplaced (calls whose native frame is not known)
    end     complete (true or false), text, and reason: `outermost`,
            `zero-return-address`, `frame-pointer-zero`, `max-frames`, `no-row`,
            `step`, `table`, `other-stack` (see --stack-switch), `no-code`, `return-probe` (the function returns to a
            uretprobe, which keeps the real address), `not-walkable`, `not-captured`,
            `running` or `changed` (see --no-stop)
  warnings  a list of lines

`unwind --help` lists the exit codes.";
