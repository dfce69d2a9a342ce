// Where libgcc replaces its own frame by that of an exception's handler.
//
// `_Unwind_RaiseException`, or `_Unwind_Resume` after a cleanup, goes to a handler by writing that function's registers over those of its
// caller that it has saved in its own frame, and returns. From the first of these words on, its
// call frame information is wrong: it says that the words are the caller's. `learn` throws while
// each instruction is interrupted, and keeps the addresses at which one of the words that had the
// caller's registers or the return address has another value. A stack there that is called complete must have
// all callers, or be that of the handler's function: where a caller needs such a register to be found, none is.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <iterator>
#include <link.h>
#include <ucontext.h>
#include <unwind_local.h>

extern "C" const void *_Unwind_Find_FDE(void *, void *);

namespace landing {

#ifdef __x86_64__
constexpr int PC = REG_RIP, SP = REG_RSP, PRESERVED[] = {REG_RBX, REG_RBP, REG_R12, REG_R13, REG_R14, REG_R15};
#else
constexpr int PC = REG_EIP, SP = REG_ESP, PRESERVED[] = {REG_EBX, REG_EBP, REG_ESI, REG_EDI};
#endif
constexpr size_t REGISTERS = sizeof PRESERVED / sizeof *PRESERVED;
constexpr size_t MOST = 8192;
constexpr greg_t TRAP_FLAG = 0x100;

// libgcc's functions that may do so, as far as the program has them.
static struct { uintptr_t start, end; } returns[4];
static uintptr_t raise_function, pcs[MOST];
static size_t pc_count;
static bool is_stepping;
constexpr size_t FRAMES = 64;
// The stack at the call of it.
static void *callers[FRAMES];
static size_t caller_count;
// Instructions that were interrupted there, how many of their stacks were called complete, and how many of these
// are other ones.
static size_t stepped, stepped_complete, stepped_wrong;

// The frame of a call of it.
static struct {
    volatile uintptr_t *return_address;
    uintptr_t return_value, preserved[REGISTERS], saved[REGISTERS];
    bool is_entered, is_saved, is_register[REGISTERS];
} frame;

static uintptr_t function_of(uintptr_t pc) {
    void *bases[3] = {};
    return _Unwind_Find_FDE(reinterpret_cast<void *>(pc), bases) ? reinterpret_cast<uintptr_t>(bases[2]) : 0;
}

static void note(uintptr_t pc) {
    if (pc_count < MOST && std::find(pcs, pcs + pc_count, pc) == pcs + pc_count) pcs[pc_count++] = pc;
}

// Whether a stack ends with all callers; or it is the last instructions', which go to the handler: with the frame of
// that function, and its callers.
static bool has_callers(void *const *list, size_t count) {
    size_t same = 0;
    while (same < count && same < caller_count && list[count - 1 - same] == callers[caller_count - 1 - same]) same++;
    return same + 1 >= caller_count || (count == same + 2 && function_of(reinterpret_cast<uintptr_t>(list[0])) == raise_function);
}

static void look(uintptr_t pc, const ucontext_t &context) {
    const greg_t *registers = context.uc_mcontext.gregs;
    if (std::any_of(std::begin(returns), std::end(returns), [pc](auto &function) { return pc == function.start; })) {
        raise_function = pc;
        frame.return_address = reinterpret_cast<uintptr_t *>(registers[SP]);
        frame.return_value = *frame.return_address;
        for (size_t at = 0; at < REGISTERS; at++)
            frame.preserved[at] = static_cast<uintptr_t>(registers[PRESERVED[at]]);
        frame.is_entered = true;
        frame.is_saved = false;
        unwind_local_end end;
        caller_count = unwind_local_backtrace_of(&context, callers, FRAMES, &end);
        if (!end.complete) abort();
        return;
    }
    if (!frame.is_entered) return;
    if (!frame.is_saved) {
        if (function_of(pc) == raise_function) return;
        // It calls for the first time: below the return address are the caller's registers.
        frame.is_saved = true;
        for (size_t at = 0; at < REGISTERS; at++) {
            frame.saved[at] = frame.return_address[-1 - static_cast<ptrdiff_t>(at)];
            frame.is_register[at] = std::count(frame.preserved, frame.preserved + REGISTERS, frame.saved[at]) != 0;
        }
    }
    bool is_replaced = *frame.return_address != frame.return_value;
    for (size_t at = 0; at < REGISTERS; at++)
        is_replaced |= frame.is_register[at] && frame.return_address[-1 - static_cast<ptrdiff_t>(at)] != frame.saved[at];
    if (!is_replaced) return;
    Dl_info code = {}, library = {};
    dladdr(reinterpret_cast<void *>(pc), &code);
    dladdr(reinterpret_cast<void *>(raise_function), &library);
    // Elsewhere the handler runs: the frame is gone.
    if (code.dli_fbase != library.dli_fbase) {
        frame.is_entered = false;
        return;
    }
    note(pc);
    void *list[FRAMES];
    unwind_local_end end;
    size_t count = unwind_local_backtrace_of(&context, list, FRAMES, &end);
    stepped++;
    stepped_complete += end.complete;
    stepped_wrong += end.complete && !has_callers(list, count);
}

static void step(int, siginfo_t *, void *argument) {
    auto &context = *static_cast<ucontext_t *>(argument);
    greg_t *registers = context.uc_mcontext.gregs;
    auto pc = static_cast<uintptr_t>(registers[PC]);
    if (is_stepping) look(pc, context);
    if (is_stepping) registers[REG_EFL] |= TRAP_FLAG;
    else registers[REG_EFL] &= ~TRAP_FLAG;
}

// Learns where that is by calling a function that throws and catches.
static void learn(void (*throws)()) {
    raise_function = reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "_Unwind_RaiseException"));
    if (!raise_function) abort();
    size_t count = 0;
    for (const char *name : {"_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_ForcedUnwind",
                             "_Unwind_Resume_or_Rethrow"}) {
        Dl_info found;
        ElfW(Sym) *symbol = nullptr;
        void *function = dlsym(RTLD_DEFAULT, name);
        if (!function || !dladdr1(function, &found, reinterpret_cast<void **>(&symbol), RTLD_DL_SYMENT)) abort();
        auto start = reinterpret_cast<uintptr_t>(function);
        returns[count++] = {start, start + symbol->st_size};
    }
    throws(); // Bound, and what is found once is found.
    struct sigaction action = {}, old = {};
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, &old);
    is_stepping = true;
    __asm__ volatile("int3");
    throws();
    is_stepping = false;
    __asm__ volatile("int3");
    sigaction(SIGTRAP, &old, nullptr);
    std::sort(pcs, pcs + pc_count);
}

// Whether a stack has a frame of one of those functions.
static bool has_return(void *const *list, size_t count) {
    return std::any_of(list, list + count, [](void *pc) {
        auto at = reinterpret_cast<uintptr_t>(pc);
        return std::any_of(std::begin(returns), std::end(returns),
                           [at](auto &function) { return at > function.start && at <= function.end; });
    });
}

// Whether the instruction at an address was interrupted with such a frame.
static bool is_replaced(void *pc) {
    return std::binary_search(pcs, pcs + pc_count, reinterpret_cast<uintptr_t>(pc));
}

} // namespace landing
