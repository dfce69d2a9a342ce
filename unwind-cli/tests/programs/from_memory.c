// Executes a copy of a program that is in memory alone, with the arguments after its name.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    struct stat status;
    int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    int memory = memfd_create("program", MFD_CLOEXEC);
    if (argc < 2 || file < 0 || memory < 0 || fstat(file, &status) != 0) return 1;
    for (off_t left = status.st_size; left > 0;) {
        ssize_t copied = sendfile(memory, file, 0, left);
        if (copied <= 0) return 2;
        left -= copied;
    }
    fexecve(memory, argv + 1, environ);
    return 3;
}
