#include <coroutine>
#include <cstdlib>
#include <stdexcept>

struct Steps {
    struct promise_type {
        int found = 0;
        Steps get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(int value) noexcept { found = value; return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    std::coroutine_handle<promise_type> handle;
    ~Steps() { handle.destroy(); }
    Steps(std::coroutine_handle<promise_type> of) : handle(of) {}
    Steps(const Steps &) = delete;
};

__attribute__((noinline)) static int draw(int times) {
    int found = 0;
    while (times--) found ^= rand();
    if (found % 13 == 0) throw std::runtime_error("an odd number");
    return found;
}

static Steps steps(int level) {
    for (int i = 0; i < level; i++) {
        int found = draw(20);
        if (level > 1) {
            Steps below = steps(level - 1);
            try {
                for (; !below.handle.done(); below.handle.resume()) found ^= below.handle.promise().found;
            } catch (const std::runtime_error &) {
                found++;
            }
        }
        co_yield found;
    }
}

int main() {
    for (;;) {
        Steps outer = steps(5);
        try {
            while (!outer.handle.done()) outer.handle.resume();
        } catch (const std::runtime_error &) {
        }
    }
}
