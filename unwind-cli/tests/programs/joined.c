/* A chain of functions with frames of different sizes. */
#include <stdio.h>
#include <unistd.h>

static volatile int sink;

__attribute__((noinline)) int f0(int x)
{
    puts("ready");
    fflush(stdout);
    pause();
    return x + 1;
}

#define CALLS(name, next, bytes)                \
    __attribute__((noinline)) int name(int x)   \
    {                                           \
        volatile char room[bytes];              \
        room[0] = (char)x;                      \
        int result = next(x + room[0]);         \
        sink = result;                          \
        return result + room[0];                \
    }

CALLS(f1, f0, 8)
CALLS(f2, f1, 24)
CALLS(f3, f2, 200)
CALLS(f4, f3, 40)
CALLS(f5, f4, 120)
CALLS(f6, f5, 8)
CALLS(f7, f6, 72)
CALLS(f8, f7, 300)
CALLS(f9, f8, 56)

int main(void) { return f9(3); }
