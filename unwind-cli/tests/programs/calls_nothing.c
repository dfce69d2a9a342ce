// Calls a function through a null pointer, below two calls; with JUMPS it jumps there instead.
static void (*volatile pointers[4])(int);

__attribute__((noinline)) void caller(int at) {
#ifdef JUMPS
    pointers[at](at); // A tail call: the caller's frame is gone.
#else
    volatile int kept[16] = {at};
    pointers[at](at);
    kept[1] = kept[0];
#endif
}

__attribute__((noinline)) void middle(int at) {
    caller(at);
    asm volatile("");
}

int main(int argc, char **argv) {
    (void)argv;
    middle(argc);
    return 0;
}
