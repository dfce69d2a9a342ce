// A program without a C library, half of whose functions keep frame pointers.
static volatile unsigned long sink;

__attribute__((noinline)) static void spin(unsigned long count)
{
	for (unsigned long i = 0; i < count; i++)
		sink += i * i;
}

__attribute__((noinline, optimize("omit-frame-pointer"))) static long deeper(int depth)
{
	if (depth == 0) {
		spin(2000000);
		return 1;
	}
	return deeper(depth - 1) + depth;
}

__attribute__((noinline)) static long with_frame_pointer(int depth)
{
	volatile long room[4] = { depth };
	room[1] = deeper(depth) + room[0];
	return room[1];
}

__attribute__((noreturn, used)) void start(void)
{
	long sum = 0;
	for (int i = 0; i < 60; i++)
		sum += with_frame_pointer(i % 8);
	__asm__ volatile("syscall" : : "a"(60), "D"(sum & 1) : "memory");
	__builtin_unreachable();
}

__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"	xor %ebp, %ebp\n"
	"	call start\n"
	"	hlt\n"
	".cfi_endproc\n"
	".size _start, . - _start\n");
