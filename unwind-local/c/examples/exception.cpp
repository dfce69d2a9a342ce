// A backtrace that is taken where an exception is made, and shown where it is caught.
#include <cstdio>
#include <stdexcept>
#include <unwind_local.h>

class traced_error : public std::runtime_error {
public:
    explicit traced_error(const char *what)
        : std::runtime_error(what), count_(unwind_local_frames(nullptr, frames_, 32, &end_)) {}
    void show() const {
        for (size_t at = 0; at < count_; at++)
            std::printf("%#zx by %u\n", static_cast<size_t>(frames_[at].address),
                        frames_[at].provenance & 7U);
        std::printf("%s\n", unwind_local_end_text(end_.code));
    }
    bool is_complete() const { return end_.complete && count_ > 3; }

private:
    unwind_local_frame frames_[32];
    unwind_local_end end_{};
    size_t count_;
};

[[gnu::noinline]] static void fails() { throw traced_error("it fails"); }

int main() {
    unwind_local_prepare();
    try {
        fails();
    } catch (const traced_error &error) {
        error.show();
        return error.is_complete() ? 0 : 1;
    }
    return 1;
}
