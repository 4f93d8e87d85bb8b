/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A FlexIO program whose firmware dies, or that races with nobody but itself, and that asks FlexIO for nothing afterwards. Arguments: an
 * image with an event handler `handler` and an RPC `ping` that activates the handler of the id it is given; and what is to happen:
 * "poll" or "sleep" until the firmware has died, or "race".
 */
#include <poll.h>
#include <flexcast_emu.h>
#include "support.h"

enum { POLLS = 1000000, SLEEP_MS = 20000 };

/* The key of the RPC: only the address counts. */
static void ping(void)
{
}

static int readable(int fd, int wait_ms)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	return poll(&entry, 1, wait_ms) == 1;
}

static void crash(struct flexio_process *process, flexio_func_t *stub, int sleeps)
{
	struct flexio_event_handler_attr attr = { .host_stub_func = stub };
	struct flexio_event_handler *handler = NULL;
	int fd = flexio_err_handler_fd(process);
	uint64_t answer = 1;

	OK(flexio_event_handler_create(process, &attr, &handler));
	OK(flexio_event_handler_run(handler, 0));
	CHECK(fd >= 0);
	OK(flexio_process_call(process, ping, &answer, (uint64_t)flexio_event_handler_get_id(handler)));
	for (int i = 0; !sleeps && i < POLLS && !readable(fd, 0); i++)
		flexcast_emu_relax();
	CHECK(readable(fd, sleeps ? SLEEP_MS : 0));
	printf("signalled\n");
}

static void race(struct flexio_process *process)
{
	uint64_t word = 7;

	for (int i = 0; i < 3; i++) {
		flexio_uintptr_t at = 0;

		OK(flexio_buf_dev_alloc(process, 64, &at));
		OK(flexio_host2dev_memcpy(process, &word, sizeof(word), at));
		OK(flexio_buf_dev_free(process, at));
		/* It is nobody's any more. */
		OK(flexio_host2dev_memcpy(process, &word, sizeof(word), at));
	}
	OK(flexio_process_destroy(process));
	printf("raced\n");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct flexio_process *process = NULL;
	struct flexio_app *app;
	flexio_func_t *stub = NULL;

	CHECK(argc == 3);
	context = open_card(0);
	app = create_app("trouble", argv[1]);
	OK(flexio_func_register(app, "handler", &stub));
	OK(flexio_func_pup_register(app, "ping", "ping__unpack", ping, sizeof(uint64_t), pack_u64));
	OK(flexio_process_create(context, app, NULL, &process));
	if (!strcmp(argv[2], "race"))
		race(process);
	else
		crash(process, stub, !strcmp(argv[2], "sleep"));
	return 0;
}
