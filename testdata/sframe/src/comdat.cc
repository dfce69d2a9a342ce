// Inline functions, each in a section and a group of its own.
int outside(int);
template <int N> inline __attribute__((noinline)) int twice(int x) { return outside(x) * outside(N); }
namespace shapes { struct Square { int side; int area() const; }; }
int shapes::Square::area() const { return twice<3>(side) + twice<4>(side); }
__attribute__((cold, noinline)) int rare(int x) { return outside(x) + 7; }
