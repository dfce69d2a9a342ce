// A backtrace of what a signal interrupted, taken in its handler.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unwind_local.h>

static void *addresses[64];
static size_t count;
static unwind_local_end end;

static void handler(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    count = unwind_local_backtrace_of(context, addresses, 64, &end);
}

__attribute__((noinline)) static int interrupted(void) { return raise(SIGUSR1); }

int main(void) {
    unwind_local_prepare();
    struct sigaction action = {0};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaction(SIGUSR1, &action, NULL) != 0 || interrupted() != 0) return EXIT_FAILURE;
    for (size_t at = 0; at < count; at++) {
        char name[64];
        size_t offset;
        // The first is the interrupted address, the others are those after a call.
        const char *address = (const char *)addresses[at] - (at ? 1 : 0);
        if (unwind_local_name(address, name, sizeof name, &offset))
            printf("%p %s+%zu\n", addresses[at], name, offset);
        else
            printf("%p\n", addresses[at]);
    }
    printf("%s\n", unwind_local_end_text(end.code));
    return end.complete && count > 3 ? EXIT_SUCCESS : EXIT_FAILURE;
}
