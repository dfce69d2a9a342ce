// Counts two signals, one of them a real-time one, which are queued and so must
// come in exactly the number that was sent. Prints both counts when standard
// input ends.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t usual, real_time;

static void on_usual(int number) { (void)number; usual++; }
static void on_real_time(int number) { (void)number; real_time++; }

int main(void) {
    struct sigaction action = {0};
    action.sa_handler = on_usual;
    sigaction(SIGUSR1, &action, 0);
    action.sa_handler = on_real_time;
    sigaction(SIGRTMIN + 3, &action, 0);
    printf("ready\n");
    fflush(stdout);
    char byte;
    for (;;) {
        ssize_t got = read(0, &byte, 1);
        if (got == 0) break;
        if (got < 0 && errno != EINTR) return 1;
    }
    printf("%d %d\n", usual ? 1 : 0, (int)real_time);
    return 0;
}
