// Threads that wait in one system call each, for ever. Each says how its call
// returned, if it does.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int pipe_ends[2], sockets[2], semaphores;

static long wait_epoll(void) {
    struct epoll_event event;
    return epoll_wait(epoll_create1(0), &event, 1, -1);
}

static long wait_semop(void) {
    struct sembuf operation = {0, -1, 0};
    return semop(semaphores, &operation, 1);
}

static long wait_semtimedop(void) {
    struct sembuf operation = {0, -1, 0};
    struct timespec limit = {1000, 0};
    return semtimedop(semaphores, &operation, 1, &limit);
}

static long wait_sigwaitinfo(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    return sigwaitinfo(&set, 0);
}

static long wait_sigtimedwait(void) {
    sigset_t set;
    struct timespec limit = {1000, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    return sigtimedwait(&set, 0, &limit);
}

static long wait_recv_with_time_limit(void) {
    struct timeval limit = {1000, 0};
    char byte;
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return recv(sockets[0], &byte, 1, 0);
}

static long wait_recv(void) {
    char byte;
    return recv(sockets[1], &byte, 1, 0);
}

static long wait_read(void) {
    char byte;
    return read(pipe_ends[0], &byte, 1);
}

static long wait_poll(void) {
    struct pollfd ends = {pipe_ends[0], POLLIN, 0};
    return poll(&ends, 1, -1);
}

static long wait_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipe_ends[0], &set);
    return select(pipe_ends[0] + 1, &set, 0, 0, 0);
}

static long wait_nanosleep(void) {
    struct timespec limit = {1000, 0};
    return nanosleep(&limit, 0);
}

static long wait_pause(void) { return pause(); }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long wait_futex(void) { return pthread_mutex_lock(&mutex); }

static const struct {
    const char *name;
    long (*wait)(void);
} waits[] = {
    {"epoll_wait", wait_epoll},
    {"semop", wait_semop},
    {"semtimedop", wait_semtimedop},
    {"sigwaitinfo", wait_sigwaitinfo},
    {"sigtimedwait", wait_sigtimedwait},
    {"recv with a time limit", wait_recv_with_time_limit},
    {"recv", wait_recv},
    {"read", wait_read},
    {"poll", wait_poll},
    {"select", wait_select},
    {"nanosleep", wait_nanosleep},
    {"pause", wait_pause},
    {"futex", wait_futex},
};

static void *run(void *index) {
    long result = waits[(long)index].wait();
    printf("%s: %s\n", waits[(long)index].name, result == -1 && errno == EINTR ? "EINTR" : "other");
    fflush(stdout);
    pause();
    return 0;
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (semaphores < 0 || pipe(pipe_ends) != 0) return 1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
    pthread_mutex_lock(&mutex);
    for (long i = 0; i < (long)(sizeof waits / sizeof *waits); i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, run, (void *)i) != 0) return 1;
    }
    puts("ready");
    fflush(stdout);
    char byte;
    // Its input ends when the test has seen enough.
    while (read(0, &byte, 1) > 0) {}
    puts("end");
    fflush(stdout);
    // This ends calls.
    semctl(semaphores, 0, IPC_RMID);
    return 0;
}
