/* Computes in as many frames as are asked for.

       depths FRAMES SECONDS */
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sum;

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((noinline)) static void computes(double seconds) {
    while (cpu_seconds() < seconds)
        for (int i = 0; i < 1000000; i++) sum += i;
}

__attribute__((noinline)) static void descends(int frames, double seconds) {
    if (frames > 0)
        descends(frames - 1, seconds);
    else
        computes(seconds);
    sum++;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    descends(atoi(argv[1]), atof(argv[2]));
    return 0;
}
