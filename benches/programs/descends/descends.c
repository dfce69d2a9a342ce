#include <stdlib.h>

static volatile int sum;

static int order(const void *left, const void *right) { return *(int *)left - *(int *)right; }

__attribute__((noinline)) static int descend(int level) {
    int list[40];
    for (int i = 0; i < 40; i++) list[i] = rand();
    qsort(list, 40, sizeof *list, order);
    return level ? descend(level - 1) + list[1] : list[0];
}

int main(void) {
    for (;;) sum += descend(12);
}
