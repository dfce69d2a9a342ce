// A library with one function.
int called(int number);
int called(int number) { return number * 3; }
