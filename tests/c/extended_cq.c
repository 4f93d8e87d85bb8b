/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended completion queues: every reader, time stamps, sizes, errors, calls in the wrong order, two threads that
 * poll one queue while a third resizes it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "queue_pairs.h"

enum { DEPTH = 64, MESSAGES = 20000, BYTES = 24 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static char memory[2][DEPTH][BYTES];
static struct ibv_poll_cq_attr plain;

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void receive(struct ibv_qp *qp, uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)memory[1][number % DEPTH], BYTES, mr->lkey };
	struct ibv_recv_wr work = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &work, &bad));
}

static void send_one(struct ibv_qp *qp, uint64_t number, uint32_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)memory[0][number % DEPTH], bytes, mr->lkey };
	struct ibv_send_wr work = {
		.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl((uint32_t)number),
	}, *bad;

	CHECK(!ibv_post_send(qp, &work, &bad));
}

/* The next completion; polling stands at it. */
static void start(void)
{
	for (int polls = 0; polls < 100000; polls++) {
		int got = ibv_start_poll(cq, &plain);

		if (got == 0)
			return;
		CHECK(got == ENOENT);
	}
	CHECK(!"a completion comes");
}

static void readers(struct ibv_qp *from, struct ibv_qp *to)
{
	int sends = 0, receives = 0;

	CHECK(ibv_start_poll(cq, &plain) == ENOENT);
	receive(to, 1000007);
	send_one(from, 7, 9);
	while (sends + receives < 2) {
		start();
		CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_vendor_err(cq) == 0);
		if (cq->wr_id == 7) {
			CHECK(ibv_wc_read_opcode(cq) == IBV_WC_SEND && ibv_wc_read_qp_num(cq) == from->qp_num);
			sends++;
		} else {
			CHECK(cq->wr_id == 1000007 && ibv_wc_read_opcode(cq) == IBV_WC_RECV);
			CHECK(ibv_wc_read_byte_len(cq) == 9 && ibv_wc_read_qp_num(cq) == to->qp_num);
			CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM && ibv_wc_read_imm_data(cq) == htonl(7));
			CHECK(cq->read_slid(cq) == 0 && cq->read_sl(cq) < 16 && cq->read_dlid_path_bits(cq) == 0);
			(void)ibv_wc_read_src_qp(cq);
			CHECK(!memcmp(memory[1][1000007 % DEPTH], memory[0][7], 9));
			receives++;
		}
		ibv_end_poll(cq);
	}
	/* Two of one start. */
	receive(to, 1);
	receive(to, 2);
	send_one(from, 1, 1);
	send_one(from, 2, 1);
	for (int left = 4; left > 0;) {
		start();
		do {
			left--;
			CHECK(cq->status == IBV_WC_SUCCESS);
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
}

/* Each completion has a time, the later one the later; the clock is ahead of both. */
static void time_stamps(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	uint64_t last = 0;

	CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	for (uint64_t message = 0; message < 20; message++) {
		receive(to, message);
		send_one(from, message, 1);
		for (int left = 2; left > 0; left--) {
			start();
			CHECK(ibv_wc_read_completion_ts(cq) >= last && ibv_wc_read_completion_ts(cq) > 0);
			last = ibv_wc_read_completion_ts(cq);
			ibv_end_poll(cq);
		}
	}
	CHECK(!ibv_query_rt_values_ex(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	CHECK(values.raw_clock.tv_sec == 0 && (uint64_t)values.raw_clock.tv_nsec >= last);
}

/* Another ring keeps what is there, in its order; one with too little room is refused, and changes nothing. */
static void sizes(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_cq *plain_cq = ibv_cq_ex_to_cq(cq);
	static const int depths[] = { 127, 31, 200, 63, 1000 };
	uint64_t message = 0;

	for (size_t turn = 0; turn < 4 * sizeof(depths) / sizeof(*depths); turn++) {
		int waiting = 12, sends = 0, receives = 0;
		uint64_t first = message;

		for (int number = 0; number < waiting / 2; number++, message++) {
			receive(to, message);
			send_one(from, message, 1);
		}
		while (sends + receives < 1) {
			start();
			*(ibv_wc_read_opcode(cq) == IBV_WC_SEND ? &sends : &receives) += 1;
			ibv_end_poll(cq);
		}
		CHECK(ibv_resize_cq(plain_cq, 0) == EINVAL && ibv_resize_cq(plain_cq, 1 << 23) == EINVAL);
		CHECK(!ibv_resize_cq(plain_cq, depths[turn % (sizeof(depths) / sizeof(*depths))]));
		CHECK(plain_cq->cqe >= depths[turn % (sizeof(depths) / sizeof(*depths))]);
		while (sends + receives < waiting) {
			int *kind;

			start();
			kind = ibv_wc_read_opcode(cq) == IBV_WC_SEND ? &sends : &receives;
			CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == first + (uint64_t)*kind);
			*kind += 1;
			ibv_end_poll(cq);
		}
	}
	for (int number = 0; number < 12; number++, message++) {
		receive(to, message);
		send_one(from, message, 1);
	}
	for (int polled = 0; polled < 24; polled++) {
		if (polled == 1)
			CHECK(ibv_resize_cq(plain_cq, 1) == EINVAL);
		start();
		CHECK(cq->status == IBV_WC_SUCCESS);
		ibv_end_poll(cq);
	}
}

static void misuse(void)
{
	struct ibv_poll_cq_attr unknown = { .comp_mask = 1 };
	struct ibv_cq_init_attr_ex attr = { .cqe = 8 }, none = { .cqe = 0 };

	CHECK(ibv_next_poll(cq) == EINVAL && ibv_start_poll(cq, &unknown) == EINVAL);
	ibv_end_poll(cq);
	CHECK(cq->read_byte_len(cq) == 0);
	CHECK(!ibv_create_cq_ex(context, &none) && errno == EINVAL);
	for (uint64_t flags = IBV_WC_EX_WITH_CVLAN; flags <= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	     flags <<= 1) {
		attr.wc_flags = flags;
		errno = 0;
		CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	}
	attr.wc_flags = 0;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	struct ibv_cq_ex *single = ibv_create_cq_ex(context, &attr);
	struct ibv_modify_cq_attr often = { .attr_mask = IBV_CQ_ATTR_MODERATE }, strange = { .attr_mask = 2 };

	CHECK(!ibv_modify_cq(ibv_cq_ex_to_cq(cq), &often));
	CHECK(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &strange) == EINVAL);
	CHECK(single && single->cqe >= 8 && !ibv_destroy_cq(ibv_cq_ex_to_cq(single)));
}

static atomic_int total;

/* Gives the queue another ring again and again while others poll it. */
static void *resize_always(void *unused)
{
	int cqe = 4 * DEPTH;

	while (atomic_load(&total) < 2 * MESSAGES) {
		cqe = cqe == 4 * DEPTH ? 16 * DEPTH : 4 * DEPTH;
		CHECK(!ibv_resize_cq(ibv_cq_ex_to_cq(cq), cqe));
		usleep(200);
	}
	return unused;
}

static atomic_int seen[2][MESSAGES];
static void *poll_always(void *unused)
{
	while (atomic_load(&total) < 2 * MESSAGES) {
		if (ibv_start_poll(cq, &plain) != 0)
			continue;
		do {
			/* Numbers from MESSAGES on are those of receives. */
			uint64_t number = cq->wr_id;
			int is_receive = ibv_wc_read_opcode(cq) == IBV_WC_RECV;

			CHECK(cq->status == IBV_WC_SUCCESS && number < 2 * MESSAGES);
			CHECK(is_receive == (number >= MESSAGES));
			CHECK(!is_receive || ibv_wc_read_imm_data(cq) == htonl((uint32_t)(number - MESSAGES)));
			atomic_fetch_add(&seen[is_receive][number % MESSAGES], 1);
			atomic_fetch_add(&total, 1);
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	return unused;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4 * DEPTH,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
			    IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	pthread_t threads[3];

	CHECK(list && (context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
	ibv_free_device_list(list);
	CHECK((cq = ibv_create_cq_ex(context, &attr)));
	memset(memory[0], 'm', sizeof(memory[0]));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_qp *from = queue_pair(), *to = queue_pair();
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);

	misuse();
	readers(from, to);
	time_stamps(from, to);
	sizes(from, to);
	for (int number = 0; number < 2; number++)
		CHECK(!pthread_create(&threads[number], NULL, poll_always, NULL));
	CHECK(!pthread_create(&threads[2], NULL, resize_always, NULL));
	for (int number = 0; number < MESSAGES; number++) {
		/* Half a queue under way. */
		while (2 * number - atomic_load(&total) > DEPTH)
			;
		receive(to, MESSAGES + (uint64_t)number);
		send_one(from, (uint64_t)number, BYTES);
	}
	for (int number = 0; number < 3; number++)
		CHECK(!pthread_join(threads[number], NULL));
	for (int number = 0; number < MESSAGES; number++)
		CHECK(seen[0][number] == 1 && seen[1][number] == 1);

	/* A flush: the error and whose it was. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	receive(to, 5);
	CHECK(!ibv_modify_qp(to, &error, IBV_QP_STATE));
	start();
	CHECK(cq->status == IBV_WC_WR_FLUSH_ERR && cq->wr_id == 5 && ibv_wc_read_qp_num(cq) == to->qp_num);
	CHECK(ibv_wc_read_vendor_err(cq) != 0);
	CHECK(ibv_start_poll(cq, &plain) == EINVAL);
	ibv_end_poll(cq);

	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("extended completion queues: all as promised\n");
	return 0;
}
