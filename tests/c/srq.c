/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared receive queues: receives of two RC queue pairs and a UD one, the limit, what is refused, a queue pair that
 * fails, and two threads that post while others complete.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "queue_pairs.h"

enum { DEPTH = 64, MESSAGES = 5000, BYTES = 64, GRH = 40 };

static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *cq, *send_cq;
static struct ibv_mr *mr, *other_mr;
static char sent[DEPTH][BYTES], received[DEPTH][BYTES + GRH];

static struct ibv_srq *shared(uint32_t receives)
{
	struct ibv_srq_init_attr init = { .srq_context = &cq, .attr = { .max_wr = receives, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(other_pd, &init);

	CHECK(srq && srq->context == context && srq->pd == other_pd && srq->srq_context == &cq);
	CHECK(init.attr.max_wr >= receives && init.attr.max_sge >= 1);
	return srq;
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1, .srq = srq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && qp->srq == srq);
	return qp;
}

static int receive(struct ibv_srq *srq, uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)received[number % DEPTH], BYTES + GRH, other_mr->lkey };
	struct ibv_recv_wr work = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int failed = ibv_post_srq_recv(srq, &work, &bad);

	CHECK(!failed == !bad);
	return failed;
}

static void send_as(struct ibv_qp *qp, uint64_t number, enum ibv_wr_opcode opcode, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge sge = { (uintptr_t)sent[number % DEPTH], BYTES, mr->lkey };
	struct ibv_send_wr work = {
		.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = htonl((uint32_t)number),
	}, *bad;

	if (ah) {
		work.wr.ud.ah = ah;
		work.wr.ud.remote_qpn = qpn;
		work.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		work.wr.rdma.remote_addr = (uintptr_t)received[0];
		work.wr.rdma.rkey = mr->rkey;
	}
	memset(sent[number % DEPTH], (int)number, BYTES);
	CHECK(!ibv_post_send(qp, &work, &bad));
}

/* The next completion of a receive. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc, done[16];

	for (int polls = 0; polls < 1000000; polls++) {
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0 && ibv_poll_cq(send_cq, 16, done) >= 0);
		if (got == 1)
			return wc;
	}
	CHECK(!"a completion comes");
	exit(1);
}

static void expect_event(enum ibv_event_type type, struct ibv_srq *srq, struct ibv_qp *qp)
{
	struct ibv_async_event event;
	struct ibv_wc wc;

	/* Polling lets time pass. */
	for (int polls = 0; ibv_get_async_event(context, &event); polls++)
		CHECK(polls < 1000 && errno == EAGAIN && ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(event.event_type == type);
	CHECK(srq ? event.element.srq == srq : event.element.qp == qp);
	ibv_ack_async_event(&event);
}

static void no_event(void)
{
	struct ibv_async_event event;

	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
}

/* Of three senders, each in its turn; then more receives than the queue holds. */
static void turns(void)
{
	struct ibv_srq *srq = shared(DEPTH - 1);
	struct ibv_qp *one = queue_pair(IBV_QPT_RC, srq), *two = queue_pair(IBV_QPT_RC, srq);
	struct ibv_qp *ud = queue_pair(IBV_QPT_UD, srq);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX } };
	struct ibv_recv_wr empty = { .wr_id = 1 }, *bad_receive;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	uint32_t number = 0;
	uint64_t posted = 0;

	CHECK(!ibv_get_srq_num(srq, &number) && number);
	CHECK(!ibv_query_gid(context, 1, GID_INDEX, &attr.grh.dgid));
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	connect_to(one, two->qp_num);
	connect_to(two, one->qp_num);
	connect_to(ud, 0);
	CHECK(ibv_post_recv(one, &empty, &bad_receive) == EINVAL);
	while (!receive(srq, posted))
		posted++;
	CHECK(posted == DEPTH - 1 && receive(srq, posted) == ENOMEM);
	for (uint64_t message = 0; message < 200; message++) {
		enum ibv_wr_opcode opcode = message % 5 ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
		int kind = message % 3;
		uint64_t slot;

		if (kind == 2)
			send_as(ud, message, IBV_WR_SEND_WITH_IMM, ah, ud->qp_num);
		else
			send_as(kind ? one : two, message, opcode, NULL, 0);
		wc = completion();
		slot = wc.wr_id % DEPTH;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == message && wc.imm_data == htonl((uint32_t)message));
		CHECK(wc.qp_num == (kind == 2 ? ud : kind ? two : one)->qp_num);
		if (kind == 2)
			CHECK(!memcmp(received[slot] + GRH, sent[message % DEPTH], BYTES));
		else if (wc.opcode == IBV_WC_RECV)
			CHECK(!memcmp(received[slot], sent[message % DEPTH], BYTES));
		CHECK(!receive(srq, posted++));
	}
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(!ibv_destroy_qp(one) && !ibv_destroy_qp(two) && !ibv_destroy_qp(ud) && !ibv_destroy_ah(ah));
	CHECK(!ibv_destroy_srq(srq));
}

/* The limit: one event when fewer are left, at once if so already; a queue pair that fails leaves the receives. */
static void limits(void)
{
	struct ibv_srq *srq = shared(DEPTH - 1);
	struct ibv_qp *one = queue_pair(IBV_QPT_RC, srq), *two = queue_pair(IBV_QPT_RC, srq);
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_qp_attr broken = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	connect_to(one, two->qp_num);
	connect_to(two, one->qp_num);
	for (uint64_t number = 0; number < 5; number++)
		CHECK(!receive(srq, number));
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 3 && attr.max_wr == DEPTH - 1);
	for (uint64_t message = 0; message < 2; message++) {
		send_as(one, message, IBV_WR_SEND, NULL, 0);
		CHECK(completion().wr_id == message);
	}
	no_event();
	send_as(one, 2, IBV_WR_SEND, NULL, 0);
	CHECK(completion().wr_id == 2);
	expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq, NULL);
	no_event();
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
	attr.srq_limit = 3;
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq, NULL);
	attr.srq_limit = DEPTH;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(!ibv_modify_qp(one, &broken, IBV_QP_STATE));
	expect_event(IBV_EVENT_QP_LAST_WQE_REACHED, NULL, one);
	/* Two receives are left, and the other queue pair has them. */
	CHECK(!ibv_destroy_qp(one));
	one = queue_pair(IBV_QPT_RC, srq);
	broken.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(two, &broken, IBV_QP_STATE));
	connect_to(one, two->qp_num);
	connect_to(two, one->qp_num);
	for (uint64_t message = 3; message < 5; message++) {
		send_as(one, message, IBV_WR_SEND, NULL, 0);
		wc = completion();
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == message && wc.qp_num == two->qp_num);
	}
	CHECK(!ibv_destroy_qp(one) && !ibv_destroy_qp(two) && !ibv_destroy_srq(srq));
}

static void refusals(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 0, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex extended = {
		.attr = { .max_wr = 4, .max_sge = 2 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC, .pd = pd,
	};
	struct ibv_srq *srq;

	srq = ibv_create_srq(pd, &init);
	CHECK(srq && !ibv_destroy_srq(srq));
	init.attr.max_wr = 1 << 20;
	CHECK(!ibv_create_srq(pd, &init) && errno == EINVAL);
	init.attr.max_wr = 4;
	init.attr.max_sge = 1000;
	CHECK(!ibv_create_srq(pd, &init) && errno == EINVAL);
	srq = ibv_create_srq_ex(context, &extended);
	CHECK(srq && !ibv_destroy_srq(srq));
	extended.srq_type = IBV_SRQT_TM;
	CHECK(!ibv_create_srq_ex(context, &extended) && errno == EOPNOTSUPP);
}

static struct ibv_srq *busy;

static void *post(void *first)
{
	for (uint64_t number = (uintptr_t)first; number < MESSAGES; number += 2)
		while (receive(busy, number))
			;
	return NULL;
}

/* Two threads post; each receive completes once. */
static void threads(void)
{
	static char seen[MESSAGES];
	struct ibv_qp *one, *two;
	pthread_t thread[2];

	busy = shared(8);
	one = queue_pair(IBV_QPT_RC, busy);
	two = queue_pair(IBV_QPT_RC, busy);
	connect_to(one, two->qp_num);
	connect_to(two, one->qp_num);
	for (uintptr_t number = 0; number < 2; number++)
		CHECK(!pthread_create(&thread[number], NULL, post, (void *)number));
	for (uint64_t message = 0; message < MESSAGES; message++) {
		struct ibv_wc wc;

		send_as(message % 2 ? one : two, message, message % 16 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, NULL, 0);
		wc = completion();
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id < MESSAGES && !seen[wc.wr_id]);
		seen[wc.wr_id] = 1;
	}
	for (int number = 0; number < 2; number++)
		CHECK(!pthread_join(thread[number], NULL));
	CHECK(!ibv_destroy_qp(one) && !ibv_destroy_qp(two) && !ibv_destroy_srq(busy));
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	CHECK(devices && devices[0]);
	context = ibv_open_device(devices[0]);
	CHECK(context && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	pd = ibv_alloc_pd(context);
	other_pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	send_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(pd && other_pd && cq && send_cq);
	mr = ibv_reg_mr(pd, sent, sizeof(sent), 0);
	CHECK(mr && !ibv_dereg_mr(mr));
	mr = ibv_reg_mr(pd, (char *)sent < (char *)received ? (void *)sent : (void *)received,
			labs((char *)received - (char *)sent) +
				((char *)sent < (char *)received ? sizeof(received) : sizeof(sent)),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	other_mr = ibv_reg_mr(other_pd, received, sizeof(received), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && other_mr);
	turns();
	limits();
	refusals();
	threads();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(other_mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(send_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other_pd) && !ibv_close_device(context));
	ibv_free_device_list(devices);
	puts("all as promised");
	return 0;
}
