/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is not linked with MPI, and loads an object that is into a scope of its own (RTLD_LOCAL), as Python loads
 * extensions: local OBJECT ARGUMENTS... calls main() of the shared object.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "local: no object is named\n");
		return 2;
	}
	void *object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	int (*entry)(int, char **) = object ? (int (*)(int, char **))dlsym(object, "main") : NULL;
	if (!entry) {
		fprintf(stderr, "local: %s\n", dlerror());
		return 2;
	}
	if (dlsym(RTLD_DEFAULT, "PMPI_Init")) {
		fprintf(stderr, "local: MPI is in the global scope: this shows nothing\n");
		return 2;
	}
	return entry(argc - 1, argv + 1);
}
