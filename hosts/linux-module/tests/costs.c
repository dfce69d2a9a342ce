/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What samples cost the program of which they are taken.
 *
 *     costs none | perf | chain | module PROGRAM ARGUMENT...
 *
 * Runs the program with a sample each 200 us by perf's clock (perf: without call chains; chain: with the kernel's own,
 * by frame pointers) or by the module, and prints how long it took and how many samples there were. Rings are large
 * enough to be read at the end alone. Under QEMU's -icount a nanosecond is an instruction.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../module/unwind_device.h"

#define PERIOD_NS 200000
#define RING_BYTES (4u << 20)

static void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static struct perf_event_mmap_page *map(int fd, size_t bytes)
{
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED)
		fail("mmap");
	return page;
}

static struct perf_event_mmap_page *by_perf(int pid, int has_chains)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = PERIOD_NS,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU |
			       PERF_SAMPLE_PERIOD | (has_chains ? PERF_SAMPLE_CALLCHAIN : 0),
		.disabled = 1,
		.enable_on_exec = 1,
	};
	int fd = syscall(SYS_perf_event_open, &attr, pid, -1, -1, 0);

	if (fd < 0)
		fail("perf_event_open");
	return map(fd, getpagesize() + RING_BYTES);
}

static struct perf_event_mmap_page *by_module(int pid)
{
	struct unwind_setup setup = { .version = UNWIND_DEVICE_VERSION,
				      .flags = UNWIND_SETUP_ON_EXEC,
				      .type = PERF_TYPE_SOFTWARE,
				      .config = PERF_COUNT_SW_CPU_CLOCK,
				      .value = PERIOD_NS,
				      .ring_bytes = RING_BYTES };
	struct unwind_add add = { .tid = pid, .cpu = -1 };
	int device = open("/dev/unwind", O_RDWR);

	if (device < 0 || ioctl(device, UNWIND_SETUP, &setup) < 0 || ioctl(device, UNWIND_ADD, &add) < 0)
		fail("/dev/unwind");
	return map(device, setup.stride);
}

static unsigned samples_in(const struct perf_event_mmap_page *page)
{
	unsigned samples = 0;

	for (uint64_t at = 0; page && at < page->data_head;) {
		const struct perf_event_header *header = (void *)((char *)page + getpagesize() + at % RING_BYTES);

		samples += header->type == PERF_RECORD_SAMPLE;
		at += header->size;
	}
	return samples;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 3 ? argv[1] : "";
	struct perf_event_mmap_page *page = NULL;
	int gate[2], pid, status;
	uint64_t begun;
	char byte;

	if (pipe2(gate, O_CLOEXEC) < 0)
		fail("pipe");
	pid = fork();
	if (pid == 0) {
		close(gate[1]);
		if (argc > 3 && read(gate[0], &byte, 1) == 1)
			execv(argv[2], argv + 2);
		_exit(127);
	}
	if (!strcmp(kind, "perf") || !strcmp(kind, "chain"))
		page = by_perf(pid, kind[0] == 'c');
	else if (!strcmp(kind, "module"))
		page = by_module(pid);
	begun = now();
	if (write(gate[1], "", 1) != 1 || waitpid(pid, &status, 0) != pid || status)
		fail("program");
	printf("COST %s %s %s %llu %u\n", kind, argv[2], argv[3], (unsigned long long)(now() - begun), samples_in(page));
	return EXIT_SUCCESS;
}
