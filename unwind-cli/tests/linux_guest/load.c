/* A guest's load: chains of functions that are known, without frame pointers, in user code, system calls,
 * page faults and new processes, on two CPUs. Each process prints its number and name, and what it has
 * mapped. The guest's first program starts the others that there are, and prints READY. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exported, so that the dynamic symbols have them. */
#define APART __attribute__((noinline))
/* No call is the last thing that a function does. */
#define STAY __asm__("")

static volatile unsigned long sum;
static int zero;
static char buffer[65536];

APART void leaf_user(void)
{
	for (int i = 0; i < 200000; i++)
		sum += i;
	STAY;
}

APART void leaf_read(void)
{
	for (int i = 0; i < 40; i++)
		if (read(zero, buffer, sizeof buffer) < 0)
			_exit(1);
	STAY;
}

APART void leaf_fault(void)
{
	char *pages = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 1 << 20; i += 4096)
		pages[i] = 1;
	munmap(pages, 1 << 20);
	STAY;
}

APART void leaf_fork(void)
{
	int child = vfork();
	if (!child)
		_exit(0);
	waitpid(child, 0, 0);
	STAY;
}

APART void leaf_stat(void)
{
	struct stat file;
	for (int i = 0; i < 100; i++)
		stat("/init", &file);
	STAY;
}

APART void mid(int which)
{
	switch (which) {
	case 0: leaf_user(); break;
	case 1: leaf_read(); break;
	case 2: leaf_fault(); break;
	case 3: leaf_fork(); break;
	default: leaf_stat();
	}
	STAY;
}

APART void outer(int which)
{
	mid(which);
	STAY;
}

APART void work(void)
{
	char name[17] = "";
	prctl(PR_GET_NAME, name);
	FILE *maps = fopen("/proc/self/maps", "r");
	for (char line[512]; maps && fgets(line, sizeof line, maps);)
		printf("MAP %s: %s", name, line);
	printf("TASK %d %s\n", getpid(), name);
	fflush(stdout);
	for (unsigned n = 0;; n++)
		outer(n % 5);
}

static void start(char *path, char *script)
{
	char *arguments[] = { path, "-IS", script, 0 }, *nothing[] = { 0 };
	if (!access(path, X_OK) && !fork())
		_exit(execve(path, arguments, nothing));
}

int main(void)
{
	if (getpid() == 1) {
		mkdir("/dev", 0755);
		mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
		mkdir("/proc", 0755);
		mount("proc", "/proc", "proc", 0, 0);
		start("/load-dynamic", 0);
		start("/load-32", 0);
		start("/usr/bin/python3", "/load.py");
		if (!fork())
			prctl(PR_SET_NAME, "child; of init");
		else
			puts("READY");
	}
	zero = open("/dev/zero", O_RDONLY);
	work();
}
