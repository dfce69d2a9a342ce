// A library of which there are two, equal but for the size of a frame.
#ifndef SIZE
#error SIZE of the frame in bytes
#endif

__attribute__((noinline)) int plugin(int depth, int (*callback)(void)) {
    volatile char room[SIZE];
    room[0] = (char)depth;
    int found = depth > 1 ? plugin(depth - 1, callback) : callback();
    return found + room[0];
}
