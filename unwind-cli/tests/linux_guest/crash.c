/* The first program of a guest whose kernel crashes, and that of the kernel which starts then. Before the crash one CPU
 * runs a chain of functions in user code, and the other one a chain that has the kernel crash. Afterwards
 * `unwind stack` reads /proc/vmcore. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exported, so that the dynamic symbols have them. */
#define APART __attribute__((noinline))
/* No call is the last thing that a function does. */
#define STAY __asm__("")

static volatile unsigned long sum;
static int trigger, ready[2];

APART void spin_leaf(void)
{
	if (write(ready[1], "", 1) != 1)
		_exit(1);
	for (;;)
		sum++;
}

APART void spin_middle(void)
{
	spin_leaf();
	STAY;
}

APART void spin_outer(void)
{
	spin_middle();
	STAY;
}

APART void crash_leaf(void)
{
	if (write(trigger, "c", 1) != 1)
		_exit(1);
	STAY;
}

APART void crash_middle(void)
{
	crash_leaf();
	STAY;
}

APART void crash_outer(void)
{
	crash_middle();
	STAY;
}

static void on_cpu(int number, const char *name)
{
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET(number, &cpus);
	sched_setaffinity(0, sizeof cpus, &cpus);
	prctl(PR_SET_NAME, name);
}

static int crash(void)
{
	static const char line[] = "console=ttyS0 no_timer_check nr_cpus=1 reset_devices quiet";
	int kernel = open("/kernel", O_RDONLY), files = open("/crashed", O_RDONLY);
	/* 2: for the time after a crash. */
	if (syscall(SYS_kexec_file_load, kernel, files, sizeof line, line, 2UL)) {
		perror("kexec_file_load");
		return 1;
	}
	trigger = open("/proc/sysrq-trigger", O_WRONLY);
	if (trigger < 0 || pipe(ready)) {
		perror("sysrq-trigger");
		return 1;
	}
	if (!fork()) {
		on_cpu(1, "spins");
		spin_outer();
	}
	char byte;
	if (read(ready[0], &byte, 1) != 1)
		return 1;
	on_cpu(0, "crashes");
	crash_outer();
	return 1;
}

static int show(void)
{
	int status = 1;
	pid_t child = fork();
	if (!child) {
		execl("/ld.so", "ld.so", "--library-path", "/", "/unwind", "stack", "--core", "/proc/vmcore",
		      "--symbols", "/init", "--json", NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	printf("STATUS %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 255);
	return 0;
}

int main(void)
{
	mkdir("/proc", 0755);
	mkdir("/dev", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	if (access("/proc/vmcore", R_OK))
		crash();
	else
		show();
	fflush(stdout);
	sleep(1);
	reboot(RB_POWER_OFF);
	return 0;
}
