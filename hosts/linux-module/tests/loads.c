/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A program whose code comes while it runs.
 *
 *     loads LIBRARY ARGUMENT...
 *
 * Loads a shared object, calls its `main`, unloads it, and does so once more.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	for (int turn = 0; turn < 2; turn++) {
		void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
		int (*run)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "main") : NULL;

		if (!run || run(argc - 1, argv + 1)) {
			fprintf(stderr, "%s\n", dlerror());
			return EXIT_FAILURE;
		}
		dlclose(library);
	}
	return EXIT_SUCCESS;
}
