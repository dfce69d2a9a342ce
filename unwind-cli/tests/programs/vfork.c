// A parent that waits in vfork, where no signal wakes it, until standard input
// ends.
#define _GNU_SOURCE
#include <unistd.h>

int main(void) {
    pid_t child = vfork();
    if (child == 0) {
        char byte;
        if (write(1, "ready\n", 6) != 6) _exit(1);
        while (read(0, &byte, 1) > 0) {}
        _exit(0);
    }
    return write(1, "done\n", 5) != 5;
}
