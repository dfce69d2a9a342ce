// Execs itself from its second thread, as often as the argument says.
// gcc -O1 -fno-omit-frame-pointer -fno-optimize-sibling-calls -static -no-pie -fcf-protection=none
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *self;
static int left;
static volatile unsigned long sink;

__attribute__((noinline)) static void spin(void) {
    for (int i = 0; i < 300000; i++) sink += i;
}

static void *second(void *arg) {
    char text[16];
    spin();
    snprintf(text, sizeof text, "%d", left - 1);
    execl(self, self, text, (char *)0);
    return arg;
}

int main(int argc, char **argv) {
    pthread_t thread;
    self = argv[0];
    left = argc > 1 ? atoi(argv[1]) : 3;
    spin();
    if (left <= 0) return 0;
    pthread_create(&thread, 0, second, 0);
    for (;;) pause();
}
