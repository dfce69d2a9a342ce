// Code of its own and of the C library below and above each other, some with frame
// pointers and some without.
#include <stdlib.h>

static volatile unsigned long sink;

__attribute__((noinline)) static unsigned long work(unsigned long count)
{
	unsigned long sum = 0;
	for (unsigned long i = 0; i < count; i++)
		sum += i * i ^ sum;
	return sum;
}

__attribute__((noinline)) static int compare(const void *a, const void *b)
{
	sink += work(60);
	return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) static unsigned long deeper(int depth)
{
	return depth == 0 ? work(50000) : deeper(depth - 1) + sink;
}

int main(void)
{
	for (int round = 0; round < 1200; round++) {
		int numbers[64];
		for (int i = 0; i < 64; i++)
			numbers[i] = (i * 7919 + round) % 64;
		qsort(numbers, 64, sizeof *numbers, compare);
		sink += deeper(round % 30);
	}
	return 0;
}
