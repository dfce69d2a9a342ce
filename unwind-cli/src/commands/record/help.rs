//! The end of `unwind record --help`.

pub(super) const LONG_HELP: &str = "\
A recording ends when the command or all given processes have ended, after --duration, or
at Ctrl-C or SIGTERM; the file is whole in each case. A command that was started gets these signals,
too, and treats all signals as it would without a recorder: if the first does not end it, it is recorded
on, until the second. If the recorder is killed, what is older
than a second is in the file, and commands that read it say that its end is missing.

perf's options mean here what they do there: -e, -c, -F, -p, -t, -a, -C, -u, -o, -g, --filter and
--cgroup. Several events are kept apart: `unwind report` has a table for each. Events in braces, which
perf counts as a group, are refused. Where the CPU has no counters, as in many virtual machines,
`-e cycles` says so; cpu-clock takes samples by a timer. Tracepoints and probes need tracefs, mounted on
/sys/kernel/tracing.

It needs root or the capability CAP_PERFMON, or, for programs of one's own without the
kernel's part, a kernel.perf_event_paranoid of 2 or less.

The ledger has each sample in one class: `complete`, `incomplete` with a reason, `kernel_only`
(threads without a user part), `unmatched` (of walks in the kernel: the stack did not come before the
recording ended, or was lost), `unchecked` (of --deferred), `damaged`, `dropped` (too many waited to be walked),
`lost` (records of any kind for which a ring had no room). Reasons:
  gap                   callers may be missing between two frames
  stack-copy-too-short  the stack is deeper than --stack-bytes
  stack-not-copied      a part of the stack that was not in memory, or is below the stack pointer
  other-stack           the caller is on another stack than the one that was copied
  no-row                no table covers the code
  frame-pointer-below-stack, zero-frame-pointer, not-code, misaligned, beyond-stack
                        no table covers the code, or a wrong one, and what it takes for a frame pointer or a
                        return address is none; of --guest see --sysroot
  bad-table             the row of the code cannot be used
  file-gone             the file with the code was removed or replaced, and the process has ended
  return-probe          a uretprobe has the return address, see --uretprobes
  no-start              the sample has no registers to start with
  record-limit          more frames than a record can have
  frame-limit           walked in the kernel: more than 2,048 frames, by the module more than 127
  stack-not-resident    walked in the kernel: a part of the stack that is not there, or that is not to be
                        brought in (--no-fault)
  executed-another      the process executed another program before its stack was walked in the kernel
  thread-ended          the thread ended before its stack was walked in the kernel; in a guest, it
                        has given its memory back
  not-resident          of --guest: a page of the stack or of a table is not in the guest's memory
  kernel-entry          of --guest: the guest's kernel has not saved the registers of user code yet
  task-switch           of --guest: the guest's kernel switches tasks, and does not tell whose memory
                        the CPU has
  interpreted-calls     in the kernel: calls of Python or JavaScript may be missing, or not at their frames
  no-memory             the module had no memory for the walk
  table-awaited         walked by the module: the table of a file was still being made, or could not be handed in
  no-room               the stack was to be copied, and the ring was nearly full, see --ring-kib
  others                as `unwind explain FILE@N` says of the N-th sample
If the classes do not add up to what the kernel wrote, the exit code is 10. That a command has failed
is told on standard error, and changes nothing of it.
The file has the ledger in a section that perf leaves out.

JSON (its JSON Schema: docs/schema/ledger.json), an object a file: `schema` (1; rises when a field
changes its meaning or goes), the classes above as counts, `incomplete` as an object of counts by reason, and
  inlined_calls   complete stacks with a call of JavaScript that may be one of the functions that are inlined
                  in it, as is said at its place (`node --detailed-line-info SCRIPT` keeps which); left out if 0
  written         samples that came out of the rings: the sum of all classes but `lost`
  lost_told       how many of `lost` the kernel's records tell
  lost_by_kernel  its count of them, or null where it has none
  skipped_bytes   bytes of the rings that were no records
  throttled       spans, nanoseconds, samples_estimated
  cpu_time        nanoseconds, samples_missing_estimated; left out where the kernel does not count
  events          of several events: a list, each with `event`, its name, `written` and the classes
  walks           in the kernel: stacks walked where the sample was taken (at_once), before the thread
                  returned to user code (deferred), or copied for want of a row and walked outside
                  (copied); samples that share the stack of an earlier one (shared)
  guest           of --guest: how often it was stopped, and how long it stood (stops, median_nanoseconds,
                  maximum_nanoseconds)
  off_cpu         of --off-cpu: samples and nanoseconds of waits, without_sample and
                  nanoseconds_without_sample of those without one, without_end; without_wait of
                  threads that had ended and of idle CPUs";
