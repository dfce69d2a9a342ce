// Throws an exception and catches it.
extern "C" int catches() {
    try {
        throw 7;
    } catch (int number) {
        return number;
    }
}
