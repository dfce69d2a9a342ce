// One function between two of `debug_frame.c`.
long through(long (*function)(long), long depth) {
    char room[120];
    room[depth & 63] = 1;
    __asm__ volatile("" : : "r"(room) : "memory");
    return function(depth) + room[2];
}
