// The first process of a guest. Records programs' time by stacks that are walked when the program
// returns to user code: along frame pointers by the kernel, and by tables by a BPF program. Writes what
// came of it to serial lines: the ledgers, the recordings by function, with a line before each of the
// program's, and the first recording. What else is said goes to the console.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static int serial_line(const char *path) {
    int line = open(path, O_RDWR | O_NOCTTY);
    struct termios settings;
    if (line < 0 || tcgetattr(line, &settings)) exit(1);
    cfmakeraw(&settings);
    cfsetspeed(&settings, B115200);
    if (tcsetattr(line, TCSANOW, &settings)) exit(1);
    return line;
}

static void run(const char *path, char *const command[]) {
    int line = serial_line(path);
    pid_t child = fork();
    if (child == 0) {
        dup2(line, 1);
        execv(command[0], command);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    tcdrain(line);
    close(line);
    printf("%s: %s ends with %d\n", path, command[1], status);
}

static void walk(char *mode, char *argument) {
    run("/dev/ttyS1", (char *[]){"/unwind", "record", "--engine", "bpf", "--json", "-o", "/tmp/bpf",
                                 "--", "/deferral", mode, argument, 0});
    int line = serial_line("/dev/ttyS2");
    dprintf(line, "bpf\n");
    tcdrain(line);
    close(line);
    run("/dev/ttyS2", (char *[]){"/unwind", "report", "--format", "folded", "/tmp/bpf", 0});
}

int main(void) {
    mkdir("/proc", 0755);
    mkdir("/dev", 0755);
    mkdir("/tmp", 0755);
    if (mount("proc", "/proc", "proc", 0, 0) || mount("dev", "/dev", "devtmpfs", 0, 0)) return 1;
    run("/dev/ttyS1", (char *[]){"/unwind", "record", "--deferred", "--json", "-o", "/tmp/data",
                                 "--", "/program", "1", 0});
    run("/dev/ttyS2", (char *[]){"/unwind", "report", "--format", "folded", "/tmp/data", 0});
    run("/dev/ttyS3", (char *[]){"/bin/cat", "/tmp/data", 0});
    walk("read", "2");
    walk("mixed", "3");
    fflush(stdout);
    tcdrain(1);
    return reboot(RB_POWER_OFF);
}
