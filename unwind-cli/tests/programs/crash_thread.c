// One of three threads dies of a read from the first page.
#include <pthread.h>
#include <unistd.h>

__attribute__((noinline)) int load(volatile int *from) {
    volatile int keep = 1;
    return *from + keep;
}

__attribute__((noinline)) void *work(void *from) {
    if (from == 0) return (void *)(long)load(from);
    pause();
    return 0;
}

int main(void) {
    pthread_t threads[2];
    if (pthread_create(&threads[0], 0, work, &threads)) return 1;
    if (pthread_create(&threads[1], 0, work, 0)) return 1;
    pause();
    return 0;
}
