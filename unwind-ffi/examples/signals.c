// Deferral inside of a program: a library is sampled by a timer, and the stack of its caller is walked once a
// call, before the library returns. A call stands for a kernel entry, the signal handler for an NMI.
//
//     cargo build --release --manifest-path unwind-ffi/lib/Cargo.toml
//     cc -O2 -Iunwind-ffi/include unwind-ffi/examples/signals.c unwind-ffi/lib/target/release/libunwind_ffi.a
//
// What a kernel does otherwise is said where it is done here.
#define _GNU_SOURCE
#include <unwind_ffi.h>

#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// ---- what is the host's: the one thread that calls the library ----

static struct {
    struct unwind_task unwind;
    // Whether it is in a call that has not begun to return: as after the entry of a kernel.
    volatile sig_atomic_t is_in_call;
    // The registers of the function that is to return: as a kernel has those of user code.
    struct unwind_registers regs;
} thread;

// A kernel has one for each address space.
static union {
    struct unwind_space space;
    char bytes[UNWIND_SPACE_BYTES_64];
} space;

// A kernel has these in a pool, or for each task.
static union {
    struct unwind_trace trace;
    char bytes[UNWIND_TRACE_BYTES(64)];
} trace;
static struct unwind_scratch scratch;
static struct unwind_rows rows;

// ---- the hooks ----

// Each call looks for requests before it returns: there is nothing more to arrange.
int32_t unwind_host_schedule(struct unwind_task *task, int32_t in_nmi) {
    (void)task, (void)in_nmi;
    return 0;
}

// Outside of a call nothing would deliver, so a request is refused there.
uint32_t unwind_host_task_kind(struct unwind_task *task) {
    (void)task;
    return thread.is_in_call ? UNWIND_TASK_KIND_USER : UNWIND_TASK_KIND_NO_USER_REGISTERS;
}

// A handler interrupts the thread at any instruction, as an NMI does.
int32_t unwind_host_in_nmi(void) { return 1; }
uint32_t unwind_host_cpu(void) { return 0; }

int32_t unwind_host_relax(uint64_t turn) {
    sched_yield();
    return turn > 1000000;
}

int32_t unwind_host_walk(struct unwind_task *task, struct unwind_walk *walk) {
    (void)task;
    walk->regs = thread.regs;
    walk->space = &space.space;
    walk->rows = &rows;
    walk->scratch = &scratch;
    walk->flags = UNWIND_MAY_FAULT;
    return 0;
}

// A kernel copies from user space, in a way that refuses its own addresses.
int32_t unwind_host_read(void *context, void *to, uint64_t addr, size_t len) {
    struct iovec local = {to, len}, target = {(void *)(uintptr_t)addr, len};

    (void)context;
    return process_vm_readv(getpid(), &local, 1, &target, 1, 0) == (ssize_t)len ? UNWIND_READ_DONE
                                                                               : UNWIND_READ_INVALID;
}

// No walk here is without faults.
int32_t unwind_host_read_nofault(void *context, void *to, uint64_t addr, size_t len) {
    (void)context, (void)to, (void)addr, (void)len;
    return UNWIND_READ_ABSENT;
}

static int look_at(struct dl_phdr_info *info, size_t size, void *wanted) {
    struct unwind_module *module = wanted;
    uint64_t pc = module->start;
    bool is_here = false;

    (void)size;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[at];
        uint64_t start = info->dlpi_addr + header->p_vaddr;

        if (header->p_type == PT_LOAD && pc - start < header->p_memsz) {
            is_here = true;
            module->start = start;
            module->end = start + header->p_memsz;
        } else if (header->p_type == PT_GNU_EH_FRAME) {
            module->table = start;
            module->format = UNWIND_FORMAT_EH_FRAME;
        }
    }
    if (!is_here) module->format = UNWIND_FORMAT_NONE;
    return is_here;
}

// A kernel looks among the task's mappings.
int32_t unwind_host_find_module(void *context, uint64_t pc) {
    struct unwind_module module = {.start = pc};

    (void)context;
    return dl_iterate_phdr(look_at, &module) && unwind_space_add(&space.space, &module) == 0;
}

// ---- the profiler: a client ----

static uint64_t profiler;
static uint64_t samples[8192], stacks[8192];
static volatile sig_atomic_t sampled, outside;
static size_t walked;
static const void *caller;

static void sample(int number) {
    uint64_t cookie;

    (void)number;
    unwind_request(&thread.unwind, profiler, &cookie);
    // Refused: a profiler walks at once, as far as it can.
    if (cookie == 0)
        outside++;
    else if (sampled < (int)(sizeof(samples) / sizeof(samples[0])))
        samples[sampled++] = cookie;
}

void unwind_host_deliver(struct unwind_task *task, const struct unwind_delivery *delivery) {
    const struct unwind_stack *stack = &delivery->stack;

    (void)task;
    if (delivery->client != profiler || delivery->sample != UNWIND_SAMPLE_MATCHED) {
        fprintf(stderr, "sample %u, end %u after %u frames\n", delivery->sample, stack->end, stack->frames);
        exit(EXIT_FAILURE);
    }
    // The library's function, then its caller.
    if (stack->frames < 3 || stack->pcs[1] != (uintptr_t)caller) exit(EXIT_FAILURE);
    if (walked < sizeof(stacks) / sizeof(stacks[0])) stacks[walked++] = delivery->cookie;
}

// A reader joins samples and stacks by their cookies.
static bool has_stack(uint64_t cookie) {
    for (size_t at = 0; at < walked; at++)
        if (stacks[at] == cookie) return true;
    return false;
}

// ---- the library that is sampled ----

// As the way out of a kernel. Requests are refused from the first line on; what came before is delivered.
static void leave(void) {
    for (;;) {
        thread.is_in_call = 0;
        if (unwind_user_return(&thread.unwind) == UNWIND_RETURN_READY) return;
        thread.is_in_call = 1;
        unwind_deliver(&thread.unwind, &trace.trace, UNWIND_RECIPIENTS_REQUESTERS);
    }
}

__attribute__((noinline)) static uint64_t compress(uint64_t rounds) {
    struct unwind_registers *regs = &thread.regs;
    volatile uint64_t sum = 0;

    // Those that calls preserve, and where this is. A kernel's entry saves them all.
    __asm__ volatile("lea 0(%%rip), %%rax\n\tmov %%rax, %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2"
                     : "=m"(regs->rip), "=m"(regs->rsp), "=m"(regs->rbp)::"rax");
    caller = __builtin_return_address(0);
    thread.is_in_call = 1;
    for (uint64_t round = 0; round < rounds; round++) sum ^= round;
    leave();
    return sum;
}

__attribute__((noinline)) static uint64_t shorter(void) { return compress(500000) ^ 1; }
__attribute__((noinline)) static uint64_t longer(void) { return compress(20000000) ^ 2; }

static void set_timer(suseconds_t micros) {
    struct itimerval timer = {{0, micros}, {0, micros}};

    setitimer(ITIMER_PROF, &timer, NULL);
}

int main(void) {
    struct sigaction action = {.sa_handler = sample, .sa_flags = SA_RESTART};
    volatile uint64_t sum = 0;

    if (unwind_space_init(&space.space, sizeof(space)) != 0 ||
        unwind_trace_init(&trace.trace, sizeof(trace)) != 0 || unwind_register(&profiler) != 0 ||
        sigaction(SIGPROF, &action, NULL) != 0)
        return EXIT_FAILURE;
    set_timer(1000);
    while (clock() < CLOCKS_PER_SEC) sum ^= shorter() ^ longer();
    set_timer(0);
    printf("%d samples by %zu walks, %d samples outside of calls\n", (int)sampled, walked, (int)outside);
    // Those of one call share one.
    for (int at = 0; at < sampled; at++)
        if (!has_stack(samples[at])) return EXIT_FAILURE;
    return unwind_cancel(&thread.unwind, profiler) == 0 && sampled > 20 && walked < (size_t)sampled
               ? EXIT_SUCCESS
               : EXIT_FAILURE;
}
