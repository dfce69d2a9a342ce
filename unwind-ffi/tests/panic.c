// Builds of the library with assertions name it.
#include <stdio.h>
#include <stdlib.h>

void unwind_must_not_panic(void);
void unwind_must_not_panic(void) {
    fprintf(stderr, "a panic\n");
    abort();
}
