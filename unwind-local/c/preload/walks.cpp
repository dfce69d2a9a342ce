// Walks by backtrace() and by _Unwind_Backtrace, and throws exceptions through what is
// preloaded: prints what is found, so that two can be compared.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdexcept>
#include <unwind.h>

static void print(const char *title, void *address) {
    Dl_info object;
    if (address == nullptr || !dladdr(address, &object)) {
        std::printf("%s %p\n", title, address);
        return;
    }
    std::printf("%s %s+%lx\n", title, std::strrchr(object.dli_fname, '/') + 1,
        static_cast<long>(static_cast<char *>(address) - static_cast<char *>(object.dli_fbase)));
}

struct Walk {
    int frames, most;
    uint64_t last;
};

static _Unwind_Reason_Code visit(_Unwind_Context *context, void *argument) {
    auto *walk = static_cast<Walk *>(argument);
    int exact = 0;
    auto ip = _Unwind_GetIPInfo(context, &exact);
    if (ip != _Unwind_GetIP(context)) std::abort();
    auto cfa = _Unwind_GetCFA(context);
    print(exact ? "exact" : "frame", reinterpret_cast<void *>(ip));
    if (ip != 0) {
        print("   in", reinterpret_cast<void *>(_Unwind_GetRegionStart(context)));
        // The kernel aligns what it writes for a handler.
        bool has_callee = walk->last != 0 && !exact;
        std::printf("   %ld\n", has_callee ? static_cast<long>(cfa - walk->last) : 0);
        walk->last = cfa;
    }
    return ++walk->frames == walk->most ? _URC_END_OF_STACK : _URC_NO_REASON;
}

__attribute__((noinline)) void walk(int most) {
    Walk found = {0, most, 0};
    std::printf("result %d\n", _Unwind_Backtrace(visit, &found));
    void *addresses[400];
    int count = backtrace(addresses, most == 0 ? 400 : most);
    for (int at = 0; at < count; at++) print("backtrace", addresses[at]);
}

__attribute__((noinline)) int recurse(int depth, void (*then)(int), int most) {
    volatile int room[20];
    room[0] = depth;
    if (depth == 0) then(most);
    else recurse(depth - 1, then, most);
    return room[0];
}

static void fail(int) { throw std::runtime_error("thrown"); }

static int order(const void *a, const void *b) {
    static int calls;
    if (calls++ == 0) walk(0);
    return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

static void handler(int) { walk(0); }

int main() {
    recurse(3, walk, 0);
    recurse(300, walk, 0);
    recurse(10, walk, 4);
    int numbers[] = {3, 1, 2};
    std::qsort(numbers, 3, sizeof *numbers, order);
    std::signal(SIGUSR1, handler);
    std::raise(SIGUSR1);
    try {
        recurse(20, fail, 0);
    } catch (const std::exception &error) {
        std::puts(error.what());
        walk(0);
    }
}
