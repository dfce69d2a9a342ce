// Copies the records of a ring in a file to its standard output, by libperf.
//
// reader FILE BYTES forward|overwrite: the ring has BYTES bytes after the first page. Ends after a
// record of lost samples, or what there is of a ring that is overwritten.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <linux/types.h>
#include <internal/lib.h>
#include <internal/mmap.h>
#include <perf/core.h>
#include <perf/event.h>
#include <perf/mmap.h>
int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int fd = open(argv[1], O_RDWR);
    bool overwrite = argv[3][0] == 'o';
    struct perf_mmap *map = calloc(1, sizeof *map);
    page_size = sysconf(_SC_PAGE_SIZE);
    struct perf_mmap_param param = {.prot = PROT_READ | PROT_WRITE, .mask = atoi(argv[2]) - 1};
    struct perf_cpu cpu = {0};
    perf_mmap__init(map, NULL, overwrite, NULL);
    if (fd < 0 || perf_mmap__mmap(map, &param, fd, cpu) < 0) return 1;
    // One for this program, and one that keeps an empty ring mapped.
    refcount_set(&map->refcnt, 2);
    for (;;) {
        int ready = perf_mmap__read_init(map);
        if (ready == -EAGAIN && !overwrite) { usleep(100); continue; }
        if (ready < 0) return 0;
        union perf_event *event;
        while ((event = perf_mmap__read_event(map))) {
            fwrite(event, event->header.size, 1, stdout);
            bool last = event->header.type == PERF_RECORD_LOST_SAMPLES;
            perf_mmap__consume(map);
            if (last && !overwrite) return 0;
        }
        // It goes to the head, also where records have come that were not read.
        if (overwrite) {
            perf_mmap__read_done(map);
            return 0;
        }
    }
}
