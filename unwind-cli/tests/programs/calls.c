// Calls a function of a library, the first time and again.
int called(int number);

__attribute__((noinline)) int inner(int number) { return called(number) + 1; }
__attribute__((noinline)) int outer(int number) { return inner(number + 1) * 2; }

int main(int count, char **arguments) {
    (void)arguments;
    return outer(count) + outer(count + 1);
}
