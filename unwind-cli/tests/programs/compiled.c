// Runs code that it has made itself, as a just-in-time compiler does, and tells of it: the map of
// the process names one half of the code, and a dump in the current folder, which is mapped as perf
// wants it, names the other half. Both belong to the user who runs this. With a first argument it
// runs one half: "map" or "dump" says by what that is told, "none" tells nothing. With a second one
// it is not the program itself that runs the code, but one child after the other.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// push rbp; mov rbp, rsp; mov ecx, 1000000; dec ecx; jnz -4; pop rbp; ret
static const unsigned char spin[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x40, 0x42, 0x0f, 0,
                                     0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};

static int write_map(uintptr_t code) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    return map && fprintf(map, "%lx %zx named_by_map\n", code, sizeof spin) > 0 && fclose(map) == 0;
}

static int write_dump(uintptr_t code) {
    char path[64];
    snprintf(path, sizeof path, "jit-%d.dump", getpid());
    // The times in it are those of another clock, so that they say nothing.
    uint32_t header[10] = {0x4a695444, 1, 40, 62, 0, getpid(), 0, 0, 1, 0};
    static const char name[] = "named_by_dump";
    uint32_t size = 56 + sizeof name + sizeof spin;
    uint32_t load[14] = {0, size, 0, 0, getpid(), getpid()};
    uint64_t words[4] = {code, code, sizeof spin, 1};
    memcpy(load + 6, words, sizeof words);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    return file >= 0 && write(file, header, sizeof header) == sizeof header &&
           write(file, load, sizeof load) == sizeof load && write(file, name, sizeof name) == sizeof name &&
           write(file, spin, sizeof spin) == sizeof spin &&
           mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) != MAP_FAILED;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const char *told = argc > 1 ? argv[1] : "both";
    int is_all = strcmp(told, "both") == 0, is_dumped = strcmp(told, "dump") == 0;
    unsigned char *code = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 1;
    memcpy(code, spin, sizeof spin);
    memcpy(code + 4096, spin, sizeof spin);
    if ((is_all || strcmp(told, "map") == 0) && !write_map((uintptr_t)code)) return 1;
    if ((is_all || is_dumped) && !write_dump((uintptr_t)code + 4096)) return 1;
    void (*first)(void), (*second)(void);
    unsigned char *after = code + 4096;
    memcpy(&first, &code, sizeof code);
    memcpy(&second, &after, sizeof after);
    if (write(1, "ready\n", 6) != 6) return 1;
    double until = 0;
    while (argc > 2) {
        if (fork() == 0) {
            until = now() + 1;
            break;
        }
        wait(0);
    }
    while (until == 0 || now() < until) {
        if (is_all || !is_dumped) first();
        if (is_all || is_dumped) second();
    }
    return 0;
}
