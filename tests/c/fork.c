/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with threads that forks: in the child every call is refused at once, whatever the threads of the parent were at, and another program can
 * be executed. With the argument `again` it is that other program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <doca_dev.h>
#include <flexcast_emu.h>
#include <infiniband/mlx5dv.h>
#include "support.h"

enum { CHILDREN = 30 };

/* As rdma-core declares it. */
int ibv_fork_init(void);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static atomic_bool stop;

static void *poll_always(void *unused)
{
	struct ibv_wc wc;

	while (!stop)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	return unused;
}

static void *list_always(void *unused)
{
	while (!stop) {
		struct ibv_mr *mr = ibv_reg_mr(pd, &stop, sizeof(stop), 0);

		CHECK(mr && !ibv_dereg_mr(mr));
		/* Refused, for the sake of its message. */
		CHECK(!ibv_open_device(NULL));
	}
	return unused;
}

/* Ends the child with the number of the line that does not hold: what prints may be locked for ever. */
#define HOLDS(condition) do { if (!(condition)) _exit(__LINE__ % 256); } while (0)
#define REFUSED(call) do { errno = 0; HOLDS(call); HOLDS(errno == ENODEV); } while (0)

static void child(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	struct ibv_send_wr wr = { 0 }, *bad;
	struct doca_devinfo **infos;
	struct flexio_app *app;
	struct ibv_wc wc;
	uint32_t count;

	alarm(5); /* whoever hangs is killed */
	REFUSED(!ibv_get_device_list(NULL));
	REFUSED(!ibv_alloc_pd(context));
	REFUSED(!ibv_reg_mr(pd, &stop, sizeof(stop), 0));
	REFUSED(!ibv_create_comp_channel(context));
	REFUSED(!ibv_create_cq(context, 1, NULL, NULL, 0));
	REFUSED(!ibv_create_qp(pd, &init));
	REFUSED(ibv_poll_cq(cq, 1, &wc) < 0);
	REFUSED(ibv_req_notify_cq(cq, 0) == ENODEV);
	REFUSED(ibv_post_send(qp, &wr, &bad) == ENODEV);
	REFUSED(ibv_destroy_qp(qp) == ENODEV);
	REFUSED(ibv_close_device(context) == ENODEV);
	REFUSED(!mlx5dv_devx_alloc_uar(context, 0));
	HOLDS(ibv_fork_init() == 0);
	HOLDS(flexio_app_create(NULL, &app) == FLEXIO_STATUS_FAILED);
	HOLDS(flexio_process_destroy(NULL) == FLEXIO_STATUS_FAILED);
	HOLDS(flexio_cq_get_cq_num(NULL) == UINT32_MAX);
	HOLDS(doca_devinfo_create_list(&infos, &count) == DOCA_ERROR_BAD_STATE);
	HOLDS(!flexcast_emu_relax() && flexcast_emu_now_ps() == 0 && !flexcast_emu_is_bridged());
	/* What the parent has for the end of a process is not for this one. */
	exit(0);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
	pthread_t threads[2];

	if (argc > 1 && !strcmp(argv[1], "again")) {
		ibv_close_device(open_card(0));
		return 0;
	}
	CHECK(ibv_fork_init() == 0);
	/* Before the first call a child is a process like any other. */
	pid_t early = fork();
	int status;
	if (early == 0)
		_exit(ibv_close_device(open_card(0)));
	CHECK(waitpid(early, &status, 0) == early && status == 0);

	context = open_card(0);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(pd && cq && (qp = ibv_create_qp(pd, &init)));
	CHECK(!pthread_create(&threads[0], NULL, poll_always, NULL));
	CHECK(!pthread_create(&threads[1], NULL, list_always, NULL));
	for (int number = 0; number < CHILDREN; number++) {
		double begun = seconds();
		pid_t pid = fork();

		if (pid == 0)
			child();
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
		if (status != 0 || seconds() - begun > 4) {
			fprintf(stderr, "child %d: status %#x after %.1f s\n", number, status, seconds() - begun);
			return 1;
		}
	}
	pid_t pid = fork();
	if (pid == 0) {
		execl(argv[0], argv[0], "again", (char *)NULL);
		_exit(1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	stop = true;
	for (int number = 0; number < 2; number++)
		CHECK(!pthread_join(threads[number], NULL));
	/* The parent goes on as before. */
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("fork: all as promised\n");
	return 0;
}
