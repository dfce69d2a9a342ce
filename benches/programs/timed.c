/* Runs a command without output, and writes the CPU seconds that it took, user and system, to
   a file. It is linked statically: with a shell in its place perf 6.1 ends most stacks inside
   of the C library, which both have mapped. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3)
        return 125;
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_WRONLY);
        if (nothing >= 0 && dup2(nothing, 1) >= 0 && dup2(nothing, 2) >= 0)
            execv(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child)
        return 126;
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 126;
    fprintf(out, "%ld.%06ld %ld.%06ld\n", (long)usage.ru_utime.tv_sec,
            (long)usage.ru_utime.tv_usec, (long)usage.ru_stime.tv_sec,
            (long)usage.ru_stime.tv_usec);
    if (fclose(out))
        return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}
