/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Records by /dev/unwind into a perf.data file.
 *
 *     unwind-record [-o FILE] [-F HERTZ] [-u] [-t PROGRAM:TABLE:ADDRESS] -p PID | -a | COMMAND...
 *
 * -a records all CPUs; -u user code alone; -t hands a table in that was made of PROGRAM for the linked address ADDRESS.
 * It ends with the process, or by SIGINT.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../module/unwind_device.h"

#define MAX_CPUS 256
#define RING_BYTES (1u << 20)
#define SIDE_BYTES (128u << 10)

/* perf_event_attr.defer_callchain and .defer_output, which headers before 6.19 lack. */
#define DEFER_BITS (3ull << 38)

static FILE *out;
static uint64_t written;
static struct perf_event_mmap_page *rings[2 * MAX_CPUS];
static int len;
static volatile sig_atomic_t is_over;

static void fail(const char *what)
{
	fprintf(stderr, "unwind-record: %s: %s\n", what, strerror(errno));
	exit(EXIT_FAILURE);
}

static void stop(int number)
{
	(void)number;
	is_over = 1;
}

static void write_bytes(const void *bytes, size_t count)
{
	if (fwrite(bytes, 1, count, out) != count)
		fail("write");
	written += count;
}

/* ---- rings ---- */

static void drain(struct perf_event_mmap_page *page)
{
	const char *data = (const char *)page + page->data_offset;
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;

	while (tail != head) {
		uint64_t at = tail % page->data_size, part = head - tail;

		if (part > page->data_size - at)
			part = page->data_size - at;
		write_bytes(data + at, part);
		tail += part;
	}
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
}

static void map(int fd, size_t bytes, off_t offset)
{
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

	if (page == MAP_FAILED)
		fail("mmap");
	rings[len++] = page;
}

/* ---- what runs, and what it maps: perf tells ---- */

static struct perf_event_attr attr_of(bool is_tasks_only)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = is_tasks_only ? PERF_COUNT_SW_DUMMY : PERF_COUNT_SW_CPU_CLOCK,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU |
			       PERF_SAMPLE_PERIOD | PERF_SAMPLE_CALLCHAIN,
		.inherit = 1,
		.sample_id_all = 1,
		.mmap = 1,
		.mmap2 = 1,
		.comm = 1,
		.comm_exec = 1,
		.task = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
		.exclude_kernel = 0,
		.exclude_hv = 1,
		.exclude_guest = 1,
	};
	return attr;
}

static void watch_tasks(int pid, int cpus)
{
	struct perf_event_attr attr = attr_of(true);

	attr.build_id = 1;
	for (int cpu = 0; cpu < cpus; cpu++) {
		int fd = syscall(SYS_perf_event_open, &attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);

		if (fd >= 0)
			map(fd, getpagesize() + SIDE_BYTES, 0);
		else if (errno != ENODEV)
			fail("perf_event_open");
	}
}

struct sample_id {
	uint32_t pid, tid;
	uint64_t time;
	uint32_t cpu, zero;
};

static void write_record(uint32_t type, uint16_t mode, const void *body, size_t bytes, uint32_t pid)
{
	struct perf_event_header header = { type, mode, sizeof(header) + bytes + sizeof(struct sample_id) };
	struct sample_id id = { pid, pid, 0, 0, 0 };

	write_bytes(&header, sizeof(header));
	write_bytes(body, bytes);
	write_bytes(&id, sizeof(id));
}

/* What a process that runs already has mapped. */
static void write_mappings(int pid)
{
	struct {
		uint32_t pid, tid;
		uint64_t addr, bytes, offset;
		uint32_t major, minor;
		uint64_t inode, generation;
		uint32_t protection, flags;
		char name[512];
	} mapping;
	struct {
		uint32_t pid, tid;
		char name[16];
	} comm = { pid, pid, "" };
	char path[64], line[1024];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	file = fopen(path, "r");
	if (file && fgets(comm.name, sizeof(comm.name), file))
		comm.name[strcspn(comm.name, "\n")] = 0;
	if (file)
		fclose(file);
	write_record(PERF_RECORD_COMM, 0, &comm, sizeof(comm), pid);
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file)) {
		unsigned long start, end, offset, inode;
		unsigned int major, minor;
		char rights[8], name[480] = "//anon";

		if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu %479[^\n]", &start, &end, rights, &offset, &major, &minor,
			   &inode, name) < 7 || rights[2] != 'x')
			continue;
		memset(&mapping, 0, sizeof(mapping));
		mapping.pid = mapping.tid = pid;
		mapping.addr = start;
		mapping.bytes = end - start;
		mapping.offset = offset;
		mapping.major = major;
		mapping.minor = minor;
		mapping.inode = inode;
		mapping.protection = PROT_READ | PROT_EXEC;
		mapping.flags = MAP_PRIVATE;
		strcpy(mapping.name, name);
		write_record(PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER, &mapping,
			     (char *)mapping.name - (char *)&mapping + (strlen(name) + 8) / 8 * 8, pid);
	}
	if (file)
		fclose(file);
}

static void write_all_mappings(void)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;

	while (processes && (entry = readdir(processes)))
		if (atoi(entry->d_name) > 0)
			write_mappings(atoi(entry->d_name));
	if (processes)
		closedir(processes);
}

/* ---- the module ---- */

static void hand_in(int device, char *what)
{
	char *program = strtok(what, ":"), *path = strtok(NULL, ":"), *address = strtok(NULL, ":");
	struct unwind_table table = { .address = address ? strtoull(address, NULL, 0) : 0 };
	struct stat status;
	int fd = path ? open(path, O_RDONLY) : -1;

	table.fd = program ? open(program, O_RDONLY) : -1;
	if (!address || fd < 0 || table.fd < 0 || fstat(fd, &status) < 0)
		fail(what);
	table.bytes = status.st_size;
	table.table = (uint64_t)(uintptr_t)mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (ioctl(device, UNWIND_TABLE, &table) < 0)
		fail("table");
	close(table.fd);
	close(fd);
}

static void add_threads(int device, int pid)
{
	char path[64];
	struct dirent *entry;
	DIR *threads;
	size_t len = 0;
	int *tids = NULL;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	threads = opendir(path);
	if (!threads)
		fail(path);
	while ((entry = readdir(threads))) {
		int tid = atoi(entry->d_name);

		if (!tid)
			continue;
		tids = realloc(tids, (len + 1) * sizeof(*tids));
		if (!tids)
			fail("memory");
		tids[len++] = tid;
	}
	closedir(threads);
	/* Threads that these create have events by that. */
	for (size_t at = 0; at < len; at++) {
		struct unwind_add add = { .tid = tids[at], .cpu = -1 };

		if (ioctl(device, UNWIND_ADD, &add) < 0 && errno != ESRCH)
			fail("thread");
	}
	free(tids);
}

static void add_cpus(int device, int cpus)
{
	for (int cpu = 0; cpu < cpus; cpu++) {
		struct unwind_add add = { .tid = -1, .cpu = cpu };

		if (ioctl(device, UNWIND_ADD, &add) < 0 && errno != ENODEV)
			fail("CPU");
	}
}

static void print_counts(int device)
{
	struct unwind_counts counts;

	if (ioctl(device, UNWIND_COUNTS, &counts) < 0)
		fail("counts");
	fprintf(stderr, "COUNTS samples %llu, no task %llu, no memory %llu, no room %llu; outcomes",
		(unsigned long long)counts.samples, (unsigned long long)counts.no_task,
		(unsigned long long)counts.no_memory, (unsigned long long)counts.no_room);
	for (int at = 0; at < UNWIND_COUNTED_OUTCOMES; at++)
		if (counts.outcomes[at])
			fprintf(stderr, " %d:%llu", at, (unsigned long long)counts.outcomes[at]);
	fprintf(stderr, "; deliveries");
	for (int at = 0; at < UNWIND_COUNTED_SAMPLES; at++)
		if (counts.deliveries[at])
			fprintf(stderr, " %d:%llu", at, (unsigned long long)counts.deliveries[at]);
	fprintf(stderr, "; ends");
	for (int at = 0; at < UNWIND_COUNTED_ENDS; at++)
		if (counts.ends[at])
			fprintf(stderr, " %d:%llu", at, (unsigned long long)counts.ends[at]);
	fprintf(stderr, "\n");
}

/* ---- the file ---- */

struct section {
	uint64_t offset, bytes;
};

static void write_header(void)
{
	struct {
		char magic[8];
		uint64_t bytes, attr_bytes;
		struct section attrs, data, types;
		uint64_t features[4];
		struct perf_event_attr attr;
		struct section ids;
	} header = { .magic = { 'P', 'E', 'R', 'F', 'I', 'L', 'E', '2' } };
	uint64_t *bits;

	header.bytes = (char *)&header.attr - (char *)&header;
	header.attr_bytes = sizeof(header) - header.bytes;
	header.attrs = (struct section){ header.bytes, header.attr_bytes };
	header.data = (struct section){ sizeof(header), written };
	header.attr = attr_of(false);
	/* The word with the bits, after type, size, config, period, sample_type and read_format. */
	bits = (uint64_t *)&header.attr + 5;
	*bits |= DEFER_BITS;
	if (fseek(out, 0, SEEK_SET))
		fail("write");
	if (fwrite(&header, sizeof(header), 1, out) != 1)
		fail("write");
	if (fseek(out, 0, SEEK_END))
		fail("write");
}

static int start_held(char **command, int *gate)
{
	int ends[2], pid;
	char byte;

	if (pipe2(ends, O_CLOEXEC) < 0)
		fail("pipe");
	pid = fork();
	if (pid == 0) {
		close(ends[1]);
		if (read(ends[0], &byte, 1) != 1)
			_exit(127);
		execvp(command[0], command);
		fprintf(stderr, "unwind-record: %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	close(ends[0]);
	*gate = ends[1];
	return pid;
}

static bool has_ended(int pid, bool is_child)
{
	return is_child ? waitpid(pid, NULL, WNOHANG) == pid : kill(pid, 0) < 0;
}

int main(int argc, char **argv)
{
	struct unwind_setup setup = { .version = UNWIND_DEVICE_VERSION,
				      .flags = UNWIND_SETUP_FREQUENCY,
				      .type = PERF_TYPE_SOFTWARE,
				      .config = PERF_COUNT_SW_CPU_CLOCK,
				      .value = 997,
				      .ring_bytes = RING_BYTES };
	int cpus = sysconf(_SC_NPROCESSORS_CONF), pid = 0, option, device, gate = -1, tables = 0;
	const char *path = "perf.data";
	bool is_all = false;
	char *table[64];

	while ((option = getopt(argc, argv, "+o:F:ut:p:a")) != -1) {
		switch (option) {
		case 'o': path = optarg; break;
		case 'F': setup.value = atoi(optarg); break;
		case 'u': setup.flags |= UNWIND_SETUP_USER_ONLY; break;
		case 't': if (tables < 64) table[tables++] = optarg; break;
		case 'p': pid = atoi(optarg); break;
		case 'a': is_all = true; break;
		default: return EXIT_FAILURE;
		}
	}
	if (!pid && !is_all && !argv[optind]) {
		fprintf(stderr, "unwind-record: nothing to record\n");
		return EXIT_FAILURE;
	}
	if (cpus > MAX_CPUS) {
		fprintf(stderr, "unwind-record: of %d CPUs only %d are sampled\n", cpus, MAX_CPUS);
		cpus = MAX_CPUS;
	}
	signal(SIGINT, stop);
	signal(SIGTERM, stop);
	/* It has addresses of the kernel and of programs: its owner alone may read it. */
	int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	out = file < 0 ? NULL : fdopen(file, "w+");
	if (!out)
		fail(path);
	device = open("/dev/unwind", O_RDWR | O_CLOEXEC);
	if (device < 0)
		fail("/dev/unwind");
	bool is_child = argv[optind] != NULL;
	if (is_child) {
		pid = start_held(argv + optind, &gate);
		if (!is_all)
			setup.flags |= UNWIND_SETUP_ON_EXEC;
	}
	if (ioctl(device, UNWIND_SETUP, &setup) < 0)
		fail("setup");
	write_header();
	written = 0;
	watch_tasks(is_all ? -1 : pid, cpus);
	for (int cpu = 0; cpu < cpus; cpu++)
		map(device, setup.stride, cpu * setup.stride);
	for (int at = 0; at < tables; at++)
		hand_in(device, table[at]);
	if (is_all)
		write_all_mappings();
	else if (!is_child)
		write_mappings(pid);
	if (is_all)
		add_cpus(device, cpus);
	else
		add_threads(device, pid);
	if (is_child && write(gate, "", 1) != 1)
		fail("start");
	while (!is_over) {
		if (pid && has_ended(pid, is_child))
			is_over = 1;
		for (int at = 0; at < len; at++)
			drain(rings[at]);
		if (!is_over)
			usleep(20000);
	}
	for (int at = 0; at < len; at++)
		drain(rings[at]);
	write_header();
	if (fclose(out))
		fail("write");
	print_counts(device);
	return EXIT_SUCCESS;
}
