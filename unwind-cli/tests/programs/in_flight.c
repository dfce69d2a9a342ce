// Waits while an exception is in flight: in a function that the unwinder of libgcc calls for each
// frame.
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

static struct _Unwind_Exception exception;

__attribute__((noinline)) static _Unwind_Reason_Code park(
    int version, _Unwind_Action actions, _Unwind_Exception_Class class,
    struct _Unwind_Exception *thrown, struct _Unwind_Context *context, void *argument) {
    (void)version, (void)actions, (void)class, (void)thrown, (void)context, (void)argument;
    if (write(1, "ready\n", 6) != 6) _exit(1);
    for (;;) pause();
    return _URC_NO_REASON;
}

__attribute__((noinline)) static int throws(int value) {
    memcpy(&exception.exception_class, "unwind\0", 8);
    _Unwind_ForcedUnwind(&exception, park, 0);
    return value + 1;
}

__attribute__((noinline)) static int outer(int value) { return throws(value) + 1; }

int main(int argc, char **argv) {
    (void)argv;
    return outer(argc);
}
