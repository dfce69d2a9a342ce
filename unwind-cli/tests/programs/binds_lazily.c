// Calls a function of a library for the first time.
int chosen_late(void);

__attribute__((noinline)) int inner(int number) { return chosen_late() + number; }
__attribute__((noinline)) int outer(int number) { return inner(number + 1) * 2; }

int main(int count, char **arguments) {
    (void)arguments;
    return outer(count) + 1;
}
