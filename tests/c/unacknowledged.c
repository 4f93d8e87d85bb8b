/* SPDX-License-Identifier: Apache-2.0 */
/* ibv_destroy_cq waits until the event that ibv_get_cq_event gave is acknowledged, by another thread after so many milliseconds. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "support.h"

static struct ibv_cq *cq;
static atomic_int acknowledged;

static void *acknowledge(void *milliseconds)
{
	usleep(1000 * (useconds_t)atoi(milliseconds));
	atomic_store(&acknowledged, 1);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_card(0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_recv_wr receive = { .num_sge = 0 }, *bad;
	struct ibv_cq *of;
	struct ibv_qp *qp;
	void *cq_context;
	pthread_t thread;

	CHECK(argc == 2 && pd && channel);
	CHECK((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_post_recv(qp, &receive, &bad));
	/* A flush: one completion, one event. */
	attr.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(!ibv_get_cq_event(channel, &of, &cq_context) && of == cq);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!pthread_create(&thread, NULL, acknowledge, argv[1]));
	CHECK(!ibv_destroy_cq(cq) && atomic_load(&acknowledged));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
