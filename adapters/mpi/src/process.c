/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process: MPI_Init and MPI_Finalize, which MPI it runs on, its endpoint, and what fork() does.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/*
 * How long a rank waits for the others to call the same, and how long an operation under way may stand still: programs
 * compute between collectives, not all ranks for as long, and pages of new memory are made while data comes.
 */
#define TIMEOUT_NS (600ull * 1000000000)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { UNKNOWN, READY, OVER };
static _Atomic int stage;
static bool multiple, registers = true;
static flexcast_endpoint *endpoint;

/* Which MPI this process runs on, as the objects are named; NULL: not known. */
static const char *running(char *version, size_t length)
{
	/* Some write more than the constant of another MPI's header says. */
	static char text[16384];
	int written = 0;
	Dl_info info;
	const char *file = dladdr((void *)PMPI(Init), &info) && info.dli_fname ? info.dli_fname : "";
	PMPI(Get_library_version)(text, &written);
	text[sizeof text - 1] = 0;
	snprintf(version, length, "%.*s", (int)strcspn(text, "\n,"), text);
	if (strstr(file, "libmpi_abi.so"))
		return "abi";
	if (strstr(text, "Open MPI") || strstr(file, "libmpi.so.40"))
		return "openmpi";
	if (strstr(text, "MPICH") || strstr(text, "Intel(R) MPI") || strstr(text, "MVAPICH") || strstr(file, "libmpi.so.12"))
		return "mpich";
	return NULL;
}

/* Ends the program where this object is for another MPI: its handles would mean something else. */
static void check_library(void)
{
	char version[128];
	const char *name = running(version, sizeof version);
	if (!name || !strcmp(name, ABI_NAME))
		return;
	fprintf(stderr,
	        "flexcast-mpi: libflexcast-mpi-" ABI_NAME ".so is preloaded, but this program runs on another MPI (%s): preload libflexcast-mpi-%s.so in its "
	        "place\n",
	        version, name);
	exit(EXIT_FAILURE);
}

static void forked(void)
{
	/* The library is the parent's. */
	atomic_store(&stage, OVER);
}

flexcast_status process_config(flexcast_config *config)
{
	flexcast_status status = flexcast_config_default(config, sizeof *config);
	if (!getenv("FLEXCAST_PROGRESS_THREAD"))
		config->progress_thread = 1;
	if (!getenv("FLEXCAST_BARRIER_TIMEOUT_NS"))
		config->barrier_timeout_ns = TIMEOUT_NS;
	if (!getenv("FLEXCAST_RECOVERY_TIMEOUT_NS"))
		config->recovery_timeout_ns = config->barrier_timeout_ns;
	/* Other datapaths refuse a setting of service processes. */
	if (!status && config->control == FLEXCAST_CONTROL_SERVICE) {
		char bound[24];
		snprintf(bound, sizeof bound, "%llu", (unsigned long long)config->barrier_timeout_ns);
		status = flexcast_config_set(config, "service.operation_ns", bound);
	}
	return status;
}

/* All ranks decide alike only if they have the same settings, and all can. */
static bool alike_everywhere(bool well)
{
	uint64_t hash = settings_hash() + !well, words[2] = {hash, ~hash};
	int rank = 0;
	if (PMPI(Allreduce)(MPI_IN_PLACE, words, 2, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD))
		return false;
	if (words[0] == ~words[1])
		return true;
	PMPI(Comm_rank)(MPI_COMM_WORLD, &rank);
	say(rank ? LOG_INFO : LOG_WARN, "off: the settings FLEXCAST_MPI... are not alike on all ranks; set them for all, such as with mpirun -x");
	return false;
}

/* After MPI has begun. In MPI_Init all ranks are here; a program whose MPI_Init this object has not seen comes with its first collective. */
static void start(bool together)
{
	static bool watching;
	flexcast_config config;
	int level = MPI_THREAD_SINGLE;
	if (atomic_load(&stage) != UNKNOWN)
		return;
	if (!process_config(&config))
		settings.progress_thread = config.progress_thread;
	PMPI(Query_thread)(&level);
	multiple = level == MPI_THREAD_MULTIPLE && settings.nonblocking && settings.progress_thread;
	bool well = settings.on && types_start() && communicators_start();
	if (well && flexcast_abi_version() < FLEXCAST_ABI_VERSION) {
		say(LOG_WARN, "off: libflexcast.so has version %u of its interface, and this object needs %u: install the library that belongs to it", flexcast_abi_version(),
		    FLEXCAST_ABI_VERSION);
		well = false;
	}
	if (!watching)
		watching = !pthread_atfork(NULL, NULL, forked);
	well = well && watching;
	well = (!together || alike_everywhere(well)) && well;
	atomic_store(&stage, well ? READY : OVER);
}

bool process_ready(void)
{
	int now = atomic_load_explicit(&stage, memory_order_acquire);
	if (now != UNKNOWN)
		return now == READY;
	int begun = 0, ended = 0;
	if (PMPI(Initialized)(&begun) || !begun || PMPI(Finalized)(&ended) || ended)
		return false;
	pthread_mutex_lock(&lock);
	if (atomic_load(&stage) == UNKNOWN) {
		check_library();
		settings_read();
		start(false);
	}
	pthread_mutex_unlock(&lock);
	return atomic_load(&stage) == READY;
}

bool process_multiple(void)
{
	return multiple;
}

bool process_registers(void)
{
	return registers;
}

flexcast_endpoint *process_endpoint(void)
{
	flexcast_endpoint_options options;
	const char *datapath;
	pthread_mutex_lock(&lock);
	if (!endpoint) {
		const char *watch = getenv("FLEXCAST_MEMORY_WATCH");
		flexcast_status status = flexcast_endpoint_options_default(&options, sizeof options);
		/* Programs free memory without a word: the system is to tell, or else no registration outlives its operation. */
		options.memory_watch = watch && *watch ? NULL : "userfaultfd";
		bool watched = options.memory_watch || (watch && !strcmp(watch, "userfaultfd"));
		if (!status)
			status = flexcast_endpoint_open(&options, &endpoint);
		if (status == FLEXCAST_ERROR_WATCH && options.memory_watch) {
			options.memory_watch = "off";
			watched = false;
			status = flexcast_endpoint_open(&options, &endpoint);
		}
		if (status)
			endpoint = NULL;
		else if (!flexcast_endpoint_datapath(endpoint, &datapath)) {
			registers = !watched && strcmp(datapath, "udp");
			say(LOG_INFO, "Flexcast %s, datapath %s", flexcast_version(), datapath);
		}
	}
	pthread_mutex_unlock(&lock);
	return endpoint;
}

static void before(void)
{
	check_library();
	settings_read();
}

static int init(int *argc, char ***argv, int required, int *provided)
{
	int level = MPI_THREAD_SINGLE;
	before();
	if (settings.on && settings.nonblocking)
		required = MPI_THREAD_MULTIPLE;
	int code = PMPI(Init_thread)(argc, argv, required, &level);
	if (provided)
		*provided = level;
	if (code == MPI_SUCCESS) {
		start(true);
		communicator_made(MPI_COMM_WORLD);
	}
	return code;
}

int MPI_Init(int *argc, char ***argv)
{
	return init(argc, argv, MPI_THREAD_SINGLE, NULL);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	return init(argc, argv, required, provided);
}

int MPI_Finalize(void)
{
	int rank = 0;
	if (atomic_load(&stage) == READY) {
		PMPI(Comm_rank)(MPI_COMM_WORLD, &rank);
		/* Nobody's connections end while another still ends an operation. */
		PMPI(Barrier)(MPI_COMM_WORLD);
		communicators_stop();
		if (endpoint && flexcast_endpoint_close(endpoint))
			say(LOG_WARN, "rank %d: the endpoint stays open: %s", rank, flexcast_last_error());
		endpoint = NULL;
		if (settings.log >= LOG_INFO && !rank)
			statistics_print();
		statistics_write(rank);
	}
	atomic_store(&stage, OVER);
	return PMPI(Finalize)();
}
