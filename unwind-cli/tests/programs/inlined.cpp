// Functions that are inlined, and wait in the innermost of them.
#include <unistd.h>

namespace shapes {

inline __attribute__((always_inline)) long park(long value) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(34L) : "rcx", "r11", "memory");
    return result + value; // parks
}

template <typename T> inline __attribute__((always_inline)) long twice(T value) {
    return park(value) * 2; // calls park
}

__attribute__((noinline)) long area(int width, long height) {
    long sum = twice<long>(height); // calls twice
    return sum + width;
}

} // namespace shapes

int main() {
    if (write(1, "ready\n", 6) != 6) return 1;
    long area = shapes::area(1, 2); // calls area
    return area != 0;
}
