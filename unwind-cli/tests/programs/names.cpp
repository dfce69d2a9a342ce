// Functions whose names C++ mangles.
#include <unistd.h>

namespace shapes {

struct Circle {
    __attribute__((noinline)) long area(int radius);
};

template <typename T> __attribute__((noinline)) long park(T value) {
    // Leaf functions get a frame only if they ask where it is.
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)));
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(34L) : "rcx", "r11", "memory");
    return result + value;
}

long Circle::area(int radius) { return park<int>(radius) + 1; }

} // namespace shapes

int main() {
    if (write(1, "ready\n", 6) != 6) return 1;
    shapes::Circle circle;
    return circle.area(2) != 0;
}
