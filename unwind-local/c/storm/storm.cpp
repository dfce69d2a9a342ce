// Threads that do what backtraces must survive, each interrupted by a timer of its own whose
// handler takes one and checks it against a chain that is known.
//
//     storm SECONDS MICROSECONDS FOLDER     (of the libraries that it loads)
//
// With 0 microseconds there are no timers. The first line has how often each thread did what it does.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind_local.h>

#include "landing.hpp"

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);
// The linker's names for the ends of these sections.
extern char __start_known_body[], __stop_known_body[];
extern char __start_known_call[], __stop_known_call[];
extern char __start_known_back[], __stop_known_back[];
}

constexpr size_t MOST = 256;
constexpr int DEPTH = 5, FIBER_DEPTH = 20;
constexpr size_t THREADS = 8;

// Of the thread, in the program's own storage: a handler may use it at any point.
static thread_local volatile bool is_in_handler, is_in_callback, is_on_fiber;
static thread_local void *volatile outer[8];
static thread_local volatile size_t outer_count;

static std::atomic<long> handlers, wrong, allocations, in_plugins, on_fibers, errnos, children, bad_children, guessed;
// Of the latter: all of their code has call frame information.
static std::atomic<long> guessed_with;
static std::atomic<long> cut[64];
// Of these: in code of which no call frame information tells, such as crtstuff's.
static std::atomic<long> cut_without;
// And while libgcc replaced the frame that its call frame information is about. Of a caller that keeps its CFA
// in a register that was replaced the walk goes to the exception's handler: frames are missing then, and the
// stack may not be called complete.
static std::atomic<long> cut_replaced;
// Stacks with a frame of a function that does so, and how many of them end at the outermost frame without being
// called complete; of these, how many while it did so.
static std::atomic<long> throwing, doubted, doubted_replaced;
// And in the C library's function by which a thread goes to another stack: it has the one's stack pointer and
// the other's return address for some instructions, of which its call frame information does not tell.
static std::atomic<long> cut_between;
// Where some stacks of the others were cut: what was interrupted.
static std::atomic<void *> cut_at[16];
static std::atomic<unsigned> cuts;
static std::atomic<bool> stop;
// Where the first function of a fiber returns to.
static void *fiber_end;
// The C library's function that goes to one.
static uintptr_t switches;
static const char *folder;
static long period;
// How often each thread has done what it does.
static std::atomic<long> rounds[THREADS];

static void note() {
    if (is_in_handler) allocations++;
}

extern "C" void *malloc(size_t size) { note(); return __libc_malloc(size); }
extern "C" void *calloc(size_t count, size_t size) { note(); return __libc_calloc(count, size); }
extern "C" void *realloc(void *old, size_t size) { note(); return __libc_realloc(old, size); }
extern "C" void free(void *old) { note(); __libc_free(old); }

static int (*next_lock)(pthread_mutex_t *);
extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept {
    note();
    return next_lock ? next_lock(mutex) : 0;
}

static bool is_in(void *address, const char *start, const char *end) {
    auto *at = static_cast<const char *>(address);
    return at > start && at <= end;
}

static void fail(const char *what, void **list, size_t count) {
    if (wrong++ > 3) return;
    dprintf(2, "wrong: %s:", what);
    for (size_t at = 0; at < count; at++) dprintf(2, " %p", list[at]);
    dprintf(2, "\n");
}

// A fiber's outermost frame returns to code that has called nothing, so that no table tells that it is the
// outermost one, and guesses may follow: they are left out.
static bool is_of_fiber(void **list, size_t *count) {
    size_t at = 0;
    while (at < *count && list[at] != fiber_end) at++;
    if (at == *count) return false;
    *count = at + 1;
    return true;
}

// Whether the trace is that of this thread, if it is complete.
static void check(void **list, size_t count) {
    size_t body = 0;
    while (body < count && !is_in(list[body], __start_known_body, __stop_known_body)) body++;
    // Before the body, and after it.
    if (outer_count == 0) return;
    if (body == count || count - body - 1 != outer_count) {
        // The thread may be on its way in or out.
        for (size_t at = 0; at < outer_count && at < count; at++)
            if (list[count - 1 - at] != outer[outer_count - 1 - at])
                return fail("the thread's outer frames", list, count);
        if (body != count || count < outer_count) fail("no body", list, count);
        return;
    }
    for (size_t at = 0; at < outer_count; at++)
        if (list[body + 1 + at] != outer[at]) return fail("outer frames", list, count);
    if (is_on_fiber) on_fibers++;
    if (!is_in_callback) return;
    size_t back = 0, call = 0;
    while (back < count && !is_in(list[back], __start_known_back, __stop_known_back)) back++;
    while (call < count && !is_in(list[call], __start_known_call, __stop_known_call)) call++;
    if (back == count) return;
    in_plugins++;
    // The recursion returns to one place, and the innermost to another.
    bool is_right = call == back + DEPTH + 1;
    for (size_t at = back + 3; is_right && at < call; at++) is_right = list[at] == list[back + 2];
    if (!is_right) fail("frames of the plugin", list, count);
}

// Whether an address is that of code without call frame information.
static bool is_without(void *address) {
    struct dl_find_object object;
    void *bases[3];
    return _dl_find_object(address, &object) == 0 && !_Unwind_Find_FDE(address, bases);
}

// The same by another library's function, which begins in the handler: whether the last frames are the
// thread's is all that is asked.
static int (*other)(void **, int);
static std::atomic<long> others_cut;

static void other_handler(int, siginfo_t *, void *) {
    int saved = errno;
    is_in_handler = true;
    errno = 4711;
    void *list[MOST];
    size_t count = static_cast<size_t>(other(list, MOST));
    is_of_fiber(list, &count);
    if (errno != 4711) errnos++;
    handlers++;
    size_t known = outer_count;
    bool is_cut = count < known;
    for (size_t at = 0; at < known && !is_cut; at++) is_cut = list[count - 1 - at] != outer[known - 1 - at];
    if (is_cut) others_cut++;
    is_in_handler = false;
    errno = saved;
}

static void handler(int, siginfo_t *, void *context) {
    int saved = errno;
    is_in_handler = true;
    errno = 4711;
    void *list[MOST];
    unwind_local_end end;
    size_t count = unwind_local_backtrace_of(context, list, MOST, &end);
    if (errno != 4711) errnos++;
    handlers++;
    bool is_whole = end.complete || is_of_fiber(list, &count);
    bool is_throwing = landing::has_return(list, count);
    if (is_throwing) throwing++;
    // Of crtstuff's code nothing tells, so that the frame pointer is a guess there.
    if (is_whole) check(list, count);
    else if (is_in_callback) fail("cut in a plugin", list, count);
    else if (end.code == 1 && is_throwing) {
        doubted++;
        if (landing::is_replaced(list[0])) doubted_replaced++;
    }
    else if (end.code == 1) {
        guessed++;
        bool is_without_any = false;
        for (size_t at = 0; at < count && !is_without_any; at++) is_without_any = is_without(list[at]);
        if (!is_without_any) guessed_with++, cut_at[cuts++ % 16] = list[0];
    }
    else {
        cut[end.code & 63]++;
        if (count && landing::is_replaced(list[0])) cut_replaced++;
        else if (count && landing::function_of(reinterpret_cast<uintptr_t>(list[0])) == switches) cut_between++;
        else if (count && is_without(list[count - 1])) cut_without++;
        else cut_at[cuts++ % 16] = count ? list[0] : nullptr;
    }
    is_in_handler = false;
    errno = saved;
}

static timer_t start_timer() {
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) abort();
    struct itimerspec every = {{0, period * 1000}, {0, period * 1000}};
    timer_settime(timer, 0, &every, nullptr);
    return timer;
}

__attribute__((noinline, section("known_back"))) static int callback() {
    is_in_callback = true;
    for (volatile int at = 0; at < 50000; at = at + 1) {}
    is_in_callback = false;
    return 0;
}

__attribute__((noinline, section("known_call"))) static void call(void *function) {
    auto plugin = reinterpret_cast<int (*)(int, int (*)())>(function);
    volatile int result = plugin(DEPTH, callback);
    (void)result;
}

static void plugins() {
    for (const char *name : {"/plugin1.so", "/plugin2.so"}) {
        void *object = dlopen((std::string(folder) + name).c_str(), RTLD_LAZY);
        if (!object) abort();
        call(dlsym(object, "plugin"));
        dlclose(object);
    }
}

__attribute__((noinline)) static void throws(int depth) {
    if (depth == 0) throw std::runtime_error("thrown");
    throws(depth - 1);
    __asm__ volatile("");
}

struct Cleanup {
    ~Cleanup() { __asm__ volatile(""); }
};

// A caller of libgcc that is found by its frame pointer, as its frame has no fixed size.
__attribute__((noinline)) static void cleans(size_t size) {
    Cleanup cleanup;
    __asm__ volatile("" : : "r"(__builtin_alloca(size)) : "memory");
    throws(10);
    __asm__ volatile("");
}

static void exceptions() {
    try {
        cleans(outer_count);
    } catch (const std::exception &) {
    }
}

static void allocates() {
    void *list[64];
    for (size_t at = 0; at < 64; at++) list[at] = malloc(at * 100 + 1);
    for (void *old : list) free(old);
}

static void forks() {
    pid_t child = fork();
    if (child == 0) {
        void *list[MOST];
        unwind_local_end end;
        size_t count = unwind_local_backtrace(list, MOST, &end);
        long before = wrong;
        check(list, count);
        if (!end.complete || wrong != before) _exit(1);
        if (children % 2) execl("/bin/true", "true", nullptr);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    children++;
    if (status != 0) bad_children++;
}

static void *short_thread(void *) {
    allocates();
    return nullptr;
}

static void threads() {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, short_thread, nullptr) == 0) pthread_join(thread, nullptr);
}

static void binds() {
    void *object = dlopen((std::string(folder) + "/lazy.so").c_str(), RTLD_LAZY);
    if (!object) abort();
    auto function = reinterpret_cast<int (*)(const char *)>(dlsym(object, "binds"));
    if (function("123") != 1) abort();
    dlclose(object);
}

// Takes the callers of the body that calls this for those that each trace from it has.
__attribute__((noinline)) static void know_outer_frames() {
    void *list[MOST];
    unwind_local_end end;
    size_t count = unwind_local_backtrace(list, MOST, &end);
    is_of_fiber(list, &count);
    for (size_t at = 2; at < count && at <= 9; at++) outer[at - 2] = list[at];
    outer_count = count - 2;
}

static thread_local ucontext_t thread_context, fiber_context;

// A frame of some 1,000 bytes.
__attribute__((noinline)) static int descends(int depth) {
    volatile char room[1000];
    room[0] = static_cast<char>(depth);
    for (volatile int at = 0; at < 500; at = at + 1) {}
    return depth ? descends(depth - 1) + room[0] : room[0];
}

// Which stack the thread is on, and so which frames it has, changes in `swapcontext`: nothing is known
// of its traces then.
static void switch_to(ucontext_t *to, ucontext_t *from) {
    outer_count = 0;
    is_on_fiber = false;
    swapcontext(from, to);
}

__attribute__((noinline, section("known_body"))) static void fiber() {
    fiber_end = __builtin_return_address(0);
    for (;;) {
        know_outer_frames();
        is_on_fiber = true;
        descends(FIBER_DEPTH);
        switch_to(&thread_context, &fiber_context);
    }
}

static void fibers() {
    static thread_local void *outer_of_thread[8];
    static thread_local size_t count_of_thread;
    static thread_local char *stack;
    if (!stack) {
        stack = static_cast<char *>(malloc(65536));
        getcontext(&fiber_context);
        fiber_context.uc_stack.ss_sp = stack;
        fiber_context.uc_stack.ss_size = 65536;
        fiber_context.uc_link = nullptr;
        makecontext(&fiber_context, fiber, 0);
    }
    count_of_thread = outer_count;
    for (size_t at = 0; at < 8; at++) outer_of_thread[at] = outer[at];
    switch_to(&fiber_context, &thread_context);
    for (size_t at = 0; at < 8; at++) outer[at] = outer_of_thread[at];
    outer_count = count_of_thread;
    descends(FIBER_DEPTH);
}

using work = void();
static work *const WORK[THREADS] = {plugins, exceptions, allocates, forks, threads, plugins, fibers, binds};

__attribute__((noinline, section("known_body"))) static void body(size_t number) {
    know_outer_frames();
    timer_t timer = start_timer();
    while (!stop) {
        WORK[number]();
        rounds[number]++;
    }
    timer_delete(timer);
    outer_count = 0;
}

static void *thread(void *argument) {
    size_t number = reinterpret_cast<size_t>(argument);
    static char rooms[THREADS][16384];
    // Half of them on a signal stack, a small one.
    stack_t room = {rooms[number], 0, 16384};
    if (number % 2) sigaltstack(&room, nullptr);
    body(number);
    __asm__ volatile("");
    return nullptr;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int seconds = atoi(argv[1]);
    period = atol(argv[2]);
    folder = argv[3];
    next_lock = reinterpret_cast<decltype(next_lock)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    unwind_local_prepare();
    landing::learn(exceptions);
    switches = landing::function_of(reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "swapcontext")));
    fibers();
    if (!unwind_local_keeps_rows()) dprintf(2, "no rows are kept\n");
    struct sigaction action = {};
    if (const char *walker = getenv("STORM_OTHER")) {
        bool is_libunwind = strcmp(walker, "libunwind") == 0;
        void *library = is_libunwind ? dlopen("libunwind.so.8", RTLD_NOW) : RTLD_DEFAULT;
        void *function = library || !is_libunwind ? dlsym(library, is_libunwind ? "unw_backtrace" : "backtrace") : nullptr;
        if (!function) return fprintf(stderr, "no %s\n", walker), 2;
        other = reinterpret_cast<int (*)(void **, int)>(function);
        void *few[8];
        other(few, 8);
    }
    action.sa_sigaction = other ? other_handler : handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
    pthread_t list[THREADS];
    for (size_t at = 0; at < THREADS; at++)
        pthread_create(&list[at], nullptr, thread, reinterpret_cast<void *>(at));
    sleep(static_cast<unsigned>(seconds));
    stop = true;
    for (pthread_t other : list) pthread_join(other, nullptr);
    printf("rounds:");
    for (auto &count : rounds) printf(" %ld", count.load());
    printf("\n");
    if (other) {
        printf("%s: handlers %ld, cut or wrong %ld, allocations and locks %ld, errno changed %ld\n",
               getenv("STORM_OTHER"), handlers.load(), others_cut.load(), allocations.load(), errnos.load());
        return 0;
    }
    long all_cut = 0;
    for (auto &number : cut) all_cut += number;
    printf("handlers %ld, in plugins %ld, on fibers %ld, children %ld; wrong %ld, allocations and locks %ld, errno "
           "changed %ld, children wrong %ld; by guesses %ld (%ld in code with call frame information), cut %ld",
           handlers.load(), in_plugins.load(), on_fibers.load(), children.load(), wrong.load(), allocations.load(),
           errnos.load(), bad_children.load(), guessed.load(), guessed_with.load(), all_cut);
    for (unsigned at = 0; at < 64; at++)
        if (cut[at]) printf(", %ld: %s", cut[at].load(), unwind_local_end_text(static_cast<uint8_t>(at)));
    long rest = all_cut - cut_without - cut_replaced - cut_between;
    printf("; in code without call frame information %ld, while libgcc replaced its frame (%zu addresses, stepped through %zu "
           "times, complete %zu, of these wrong %zu) %ld (not called complete %ld, and %ld others of %ld in functions that do so), in swapcontext %ld, "
           "others %ld (%.4f %%)\n",
           cut_without.load(), landing::pc_count, landing::stepped, landing::stepped_complete, landing::stepped_wrong,
           cut_replaced.load(), doubted_replaced.load(),
           doubted - doubted_replaced, throwing.load(), cut_between.load(), rest,
           100.0 * static_cast<double>(rest) / static_cast<double>(handlers));
    for (auto &last : cut_at) {
        Dl_info found = {};
        if (!getenv("STORM_CUTS") || !last) continue;
        if (!dladdr(last, &found) || !found.dli_fname) {
            fprintf(stderr, "cut at %p\n", last.load());
            continue;
        }
        auto offset = static_cast<char *>(last.load()) - static_cast<char *>(found.dli_fbase);
        fprintf(stderr, "cut at %s+%#tx %s\n", found.dli_fname, offset, found.dli_sname ? found.dli_sname : "");
    }
    bool is_good = (handlers > 100 || !period) && !wrong && !allocations && !errnos && !bad_children && landing::stepped && !landing::stepped_wrong;
    return is_good && (rest * 2000 < handlers || !period) ? 0 : 1;
}
