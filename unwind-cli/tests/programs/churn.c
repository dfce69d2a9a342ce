// Threads that come and go as fast as they can, until standard input ends.
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

static void *nothing(void *unused) { return unused; }

static void *spawn(void *unused) {
    for (;;) {
        pthread_t thread;
        if (pthread_create(&thread, 0, nothing, 0)) continue;
        pthread_join(thread, 0);
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&thread, 0, spawn, 0)) return 1;
    if (write(1, "ready\n", 6) != 6) return 1;
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, -1) != 1) {}
    return 0;
}
