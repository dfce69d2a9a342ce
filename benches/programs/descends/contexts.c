#include <stdlib.h>
#include <ucontext.h>

static ucontext_t caller, fiber;
static char stack[1 << 16];
static volatile int sum;

static int order(const void *left, const void *right) { return *(int *)left - *(int *)right; }

__attribute__((noinline)) static int descend(int level) {
    int list[32];
    for (int i = 0; i < 32; i++) list[i] = rand();
    qsort(list, 32, sizeof *list, order);
    return level ? descend(level - 1) + list[1] : list[0];
}

static void works(void) {
    for (int i = 0; i < 5; i++) {
        sum += descend(5);
        swapcontext(&fiber, &caller);
    }
}

int main(void) {
    for (;;) {
        getcontext(&fiber);
        fiber.uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof stack};
        fiber.uc_link = &caller;
        makecontext(&fiber, works, 0);
        for (int i = 0; i < 6; i++) {
            swapcontext(&caller, &fiber);
            sum += descend(2);
        }
    }
}
