// Loads each library that it is told, and spends time in each, twice.
#include <dlfcn.h>

int main(int count, char **libraries)
{
	const char *names[] = { "until_tables_are_there", "without_calls" };

	for (int round = 0; round < 2; round++)
		for (int at = 1; at < count; at++) {
			void *library = dlopen(libraries[at], RTLD_NOW);
			void (*spins)(double) = library ? (void (*)(double))dlsym(library, names[round]) : 0;

			if (!spins)
				return 1;
			spins(0.02);
		}
	return 0;
}
