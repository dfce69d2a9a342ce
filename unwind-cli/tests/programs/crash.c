// Dies of a read from the first page, below two calls.
__attribute__((noinline)) int load(volatile int *from) {
    volatile int keep = 1;
    return *from + keep;
}

__attribute__((noinline)) int middle(volatile int *from) { return load(from) + 1; }

int main(int argc, char **argv) {
    (void)argv;
    return middle((volatile int *)(long)((argc - 1) * 8));
}
