/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A program whose stack is known: leaf <- varying <- step, 12 times <- rounds <- work <- main or a thread.
 *
 *     victim ROUNDS [threads | forks | execs COUNT]
 */
#include <alloca.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))
#define DEPTH 12

volatile uint64_t sink;

KEPT void leaf(unsigned count)
{
	for (unsigned at = 0; at < count; at++)
		sink = sink * 31 + at;
}

/* Its CFA goes by the frame pointer. */
KEPT void varying(unsigned bytes, unsigned count)
{
	volatile char *room = alloca(64 + bytes % 512);

	room[0] = 1;
	leaf(count);
	sink += room[0];
}

KEPT void step(unsigned depth, unsigned count)
{
	if (depth > 1)
		step(depth - 1, count);
	else
		varying(count * 16, count);
	sink++;
}

KEPT void rounds(unsigned len)
{
	for (unsigned at = 0; at < len; at++) {
		step(DEPTH, 20000 + at % 16);
		getppid();
	}
	sink++;
}

KEPT void work(unsigned len)
{
	rounds(len);
	sink++;
}

static void *thread(void *len)
{
	work((uintptr_t)len);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned len = argc > 1 ? atoi(argv[1]) : 100;
	int count = argc > 3 ? atoi(argv[3]) : 0;
	char left[16];

	if (argc > 2 && !strcmp(argv[2], "threads")) {
		for (int at = 0; at < count; at++) {
			pthread_t id;

			if (pthread_create(&id, NULL, thread, (void *)(uintptr_t)len) == 0 && at % 2)
				pthread_join(id, NULL);
		}
	}
	if (argc > 2 && !strcmp(argv[2], "forks"))
		for (int at = 0; at < count; at++)
			if (fork() == 0) {
				work(len);
				_exit(0);
			}
	work(len);
	while (wait(NULL) > 0)
		;
	if (argc > 2 && !strcmp(argv[2], "execs") && count) {
		snprintf(left, sizeof(left), "%d", count - 1);
		execl("/proc/self/exe", argv[0], argv[1], argv[2], left, NULL);
	}
	return 0;
}
