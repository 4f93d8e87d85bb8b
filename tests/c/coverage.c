/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls functions of the library (first argument) by name, with six zeros, and prints name, result and errno. They are functions
 * that read no argument.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

typedef long (*function)(long, long, long, long, long, long);

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

	if (!library) {
		fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "no library given");
		return 1;
	}
	for (int i = 2; i < argc; i++) {
		function call = (function)dlsym(library, argv[i]);
		int result;

		if (!call) {
			fprintf(stderr, "%s is not exported\n", argv[i]);
			return 1;
		}
		errno = 0;
		result = (int)call(0, 0, 0, 0, 0, 0);
		printf("%s %d %d\n", argv[i], result, errno);
	}
	return 0;
}
