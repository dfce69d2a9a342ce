/* Writes a perf.data of itself: samples with branches, laid out by the header of Linux
 * and by this compiler. The bits of the flags come from the number of the sample.
 *
 * branches FILE COUNT [calls]: with a call chain, and the branches as a call stack. */
#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRANCHES 6

struct sample {
    struct perf_event_header header;
    uint64_t ip;
    uint32_t pid, tid;
    uint64_t time;
    uint64_t period;
};

struct chain {
    uint64_t count;
    uint64_t words[3];
};

struct branches {
    uint64_t count;
    uint64_t hw_index;
    struct perf_branch_entry entries[BRANCHES];
};

struct mapping {
    struct perf_event_header header;
    uint32_t pid, tid;
    uint64_t addr, len, pgoff;
    uint32_t maj, min;
    uint64_t ino, ino_generation;
    uint32_t prot, flags;
    char name[256];
    struct {
        uint32_t pid, tid;
        uint64_t time;
    } id;
};

struct comm {
    struct perf_event_header header;
    uint32_t pid, tid;
    char name[16];
    struct {
        uint32_t pid, tid;
        uint64_t time;
    } id;
};

struct file {
    char magic[8];
    uint64_t size, attr_size;
    uint64_t attrs_at, attrs_len, data_at, data_len, types_at, types_len;
    uint64_t features[4];
    struct perf_event_attr attr;
    uint64_t ids_at, ids_len;
};

__attribute__((noinline)) int callee(int a) { return a * 3 + 1; }
__attribute__((noinline)) int caller(int a) { return callee(a + 2) - 7; }

static char data[1 << 20];
static size_t used;

static void put(const void *record, size_t len) {
    memcpy(data + used, record, len);
    used += len;
}

static void put_mappings(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end, offset, inode;
        unsigned major, minor;
        char prot[5], name[256] = "";
        if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %255s", &start, &end, prot, &offset, &major,
                   &minor, &inode, name) < 8 || prot[2] != 'x' || name[0] != '/')
            continue;
        struct mapping mapping = {
            .header = {PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER, sizeof mapping},
            .pid = 77, .tid = 77, .addr = start, .len = end - start, .pgoff = offset,
            .maj = major, .min = minor, .ino = inode, .prot = 5, .flags = 2,
            .id = {77, 77, 1},
        };
        strcpy(mapping.name, name);
        put(&mapping, sizeof mapping);
    }
    fclose(maps);
}

int main(int argc, char **argv) {
    struct comm comm = {
        .header = {PERF_RECORD_COMM, 0, sizeof comm}, .pid = 77, .tid = 77,
        .name = "branches", .id = {77, 77, 1},
    };
    put(&comm, sizeof comm);
    put_mappings();
    uint64_t places[] = {
        (uint64_t)caller + 4, (uint64_t)callee, (uint64_t)main + 8, (uint64_t)caller, 0x1234,
        0xffffffff81000000, (uint64_t)&strtoul + 1,
    };
    unsigned count = atoi(argv[2]);
    int calls = argc > 3;
    for (unsigned n = 0; n < count; n++) {
        struct sample sample = {
            .header = {PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, sizeof sample},
            .ip = (uint64_t)callee + 2, .pid = 77, .tid = 77, .time = 1000 + n, .period = 1,
        };
        struct chain chain = {3, {PERF_CONTEXT_USER, sample.ip, (uint64_t)caller + 4}};
        /* Of a call stack without calls perf shows an entry that is not there. */
        struct branches branches = {n % 9 == 8 && !calls ? 0 : BRANCHES, n % 32, {}};
        for (unsigned b = 0; b < BRANCHES; b++) {
            unsigned bits = n * BRANCHES + b;
            branches.entries[b] = (struct perf_branch_entry){
                .from = places[bits % 7], .to = places[(bits / 7 + b) % 7],
                .mispred = bits & 1, .predicted = bits >> 1 & 1, .in_tx = bits >> 2 & 1,
                .abort = bits >> 3 & 1, .cycles = bits * 181, .type = bits % 16,
                .spec = bits >> 2 & 3, .new_type = bits / 16 % 8, .priv = bits % 5,
            };
        }
        size_t len = sizeof branches - (branches.count ? 0 : sizeof branches.entries);
        sample.header.size += len + (calls ? sizeof chain : 0);
        put(&sample, sizeof sample);
        if (calls)
            put(&chain, sizeof chain);
        put(&branches, len);
    }
    struct file file = {
        .magic = "PERFILE2", .size = offsetof(struct file, attr),
        .attr_size = sizeof file.attr + 16, .attrs_at = offsetof(struct file, attr),
        .attrs_len = sizeof file.attr + 16, .data_at = sizeof file, .data_len = used,
        .attr = {
            .type = PERF_TYPE_HARDWARE, .size = sizeof file.attr,
            .config = PERF_COUNT_HW_CPU_CYCLES, .sample_period = 1,
            .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME |
                           PERF_SAMPLE_PERIOD | PERF_SAMPLE_BRANCH_STACK |
                           (calls ? PERF_SAMPLE_CALLCHAIN : 0),
            .sample_id_all = 1, .mmap2 = 1, .comm = 1, .exclude_kernel = 1,
            .branch_sample_type = PERF_SAMPLE_BRANCH_USER |
                                  (calls ? PERF_SAMPLE_BRANCH_CALL_STACK : PERF_SAMPLE_BRANCH_ANY) |
                                  PERF_SAMPLE_BRANCH_TYPE_SAVE | PERF_SAMPLE_BRANCH_HW_INDEX,
        },
        .ids_at = sizeof file,
    };
    FILE *out = fopen(argv[1], "wb");
    fwrite(&file, sizeof file, 1, out);
    fwrite(data, used, 1, out);
    return fclose(out);
}
