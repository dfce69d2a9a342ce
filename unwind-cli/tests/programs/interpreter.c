// A library, or with STANDS_ALONE a program, that has what tells CPython 3.9: its threads, their calls and its evaluator.
#include <stdint.h>
#include <string.h>
#include <time.h>

unsigned long Py_Version = 0x030900f0;
uint64_t _PyRuntime[16];
static uint64_t interpreter[8], thread[32], frame[32], code[32], lines[8];
static struct {
	uint64_t count, type, len, hash;
	uint32_t state;
	char text[28];
} name = { .len = 4, .hash = 7, .state = (1 | 1 << 3 | 1 << 4) << 2, .text = "\0\0\0\0\0\0\0\0\0\0\0\0call" };

static void spin(double seconds)
{
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
}

#define SPINS(function)                                  \
	__attribute__((noinline)) void function(double seconds) \
	{                                                \
		spin(seconds);                           \
		__asm__ volatile("");                    \
	}
SPINS(_PyEval_EvalFrameDefault)
SPINS(part_of_it)
SPINS(without_calls)
SPINS(until_tables_are_there)

// Whether the thread is in the midst of a call.
void calls(int does)
{
	thread[176 / 8] = (uint64_t)__builtin_thread_pointer();
	thread[24 / 8] = does ? (uint64_t)frame : 0;
	frame[32 / 8] = (uint64_t)code;
	code[104 / 8] = code[112 / 8] = (uint64_t)&name;
	code[120 / 8] = (uint64_t)lines;
	interpreter[8 / 8] = (uint64_t)thread;
	_PyRuntime[32 / 8] = (uint64_t)interpreter;
}

#ifdef STANDS_ALONE
int main(void)
{
	until_tables_are_there(0.5);
	without_calls(0.2);
	calls(0);
	without_calls(0.2);
	calls(1);
	part_of_it(0.3);
	_PyEval_EvalFrameDefault(0.3);
	return 0;
}
#endif
