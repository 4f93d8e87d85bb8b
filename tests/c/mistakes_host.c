/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host side of tests/tests/outside/mistakes.rs: mistakes_host IMAGE MISTAKE LANES MESSAGES LOG_CQ IN_FLIGHT MILLISECONDS.
 *
 * Card 1 sends numbers to event handlers of card 0, and waits until all are answered or the emulated machine has had so much
 * card time to say why not; of a handler that does not end it waits for that in any case.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <flexcast_emu.h>
#include <infiniband/verbs.h>
#include <libflexio/flexio.h>

#include "mistakes.h"

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                              \
		}                                                                             \
	} while (0)
#define OK(call) CHECK((call) == FLEXIO_STATUS_SUCCESS)

enum { LANES = 2, SLOTS = 64 };
/* Calls that an idle machine is given. */
static const uint64_t ENOUGH_CALLS = 20000;

struct side {
	struct flexio_event_handler *handler;
	struct flexio_outbox *outbox;
	struct flexio_cq *cq;
	struct flexio_qp *qp;
	struct flexio_mkey *key;
	struct ibv_cq *peer_cq;
	struct ibv_qp *peer;
	uint64_t context;
	uint32_t sent, acknowledged, answered;
};

static void prepare(void)
{
}

static void pack(void *to, va_list arguments)
{
	*(uint64_t *)to = va_arg(arguments, uint64_t);
}

static uint64_t filled(struct flexio_process *process, size_t bytes, int value)
{
	flexio_uintptr_t at = 0;

	OK(flexio_buf_dev_alloc(process, bytes, &at));
	OK(flexio_buf_dev_memset(process, value, bytes, at));
	return at;
}

static void *file(const char *name, size_t *bytes)
{
	FILE *file = fopen(name, "rb");
	char *content;

	CHECK(file && !fseek(file, 0, SEEK_END));
	*bytes = (size_t)ftell(file);
	rewind(file);
	content = malloc(*bytes);
	CHECK(content && fread(content, 1, *bytes, file) == *bytes);
	fclose(file);
	return content;
}

/* A reliable connection from the queue pair of a lane to one of card 1, and back. */
static void connect_pair(struct side *side, struct flexio_qp_attr attr, union ibv_gid gid[2])
{
	static const enum flexio_qp_state states[] = { FLEXIO_QP_STATE_INIT, FLEXIO_QP_STATE_RTR, FLEXIO_QP_STATE_RTS };
	struct flexio_qp_attr_opt_param_mask mask = { .qp_access_mask = true, .min_rnr_nak_timer = true };
	uint8_t mac[6] = { 2, 0, 0, 0, 0, gid[1].raw[15] };
	struct ibv_qp_attr at = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	attr.vhca_port_num = 1;
	attr.remote_qp_num = side->peer->qp_num;
	attr.rgid_or_rip = gid[1];
	attr.dest_mac = mac;
	attr.path_mtu = FLEXIO_QP_QPC_MTU_BYTES_1K;
	attr.min_rnr_nak_timer = 12;
	attr.retry_count = 7;
	attr.udp_sport = 0xC000;
	attr.grh = 1;
	for (int i = 0; i < 3; i++) {
		attr.next_state = states[i];
		OK(flexio_qp_modify(side->qp, &attr, &mask));
	}
	CHECK(!ibv_modify_qp(side->peer, &at, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	at.qp_state = IBV_QPS_RTR;
	at.path_mtu = IBV_MTU_1024;
	at.dest_qp_num = flexio_qp_get_qp_num(side->qp);
	at.max_dest_rd_atomic = 1;
	at.min_rnr_timer = 12;
	at.ah_attr.is_global = 1;
	at.ah_attr.port_num = 1;
	at.ah_attr.grh.dgid = gid[0];
	at.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(side->peer, &at,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	at.qp_state = IBV_QPS_RTS;
	at.timeout = 14;
	at.retry_cnt = 7;
	at.rnr_retry = 7;
	at.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(side->peer, &at,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int argc, char **argv)
{
	static const char *const names[] = {
#define NAME(name) #name,
		MISTAKES(NAME)
	};
	char name[] = "mistakes", none[] = "";
	struct flexio_app_attr app_attr = { .app_name = name, .app_sig_sec_name = none };
	struct flexio_app *app;
	flexio_func_t *echo = NULL;
	struct ibv_context *card[2];
	struct ibv_pd *pd[2];
	union ibv_gid gid[2];
	struct flexio_process_attr process_attr = { 0 };
	struct flexio_process *process;
	static struct side sides[LANES];
	int mistake = 0, count = 0;

	CHECK(argc == 8);
	while (mistake < (int)(sizeof(names) / sizeof(names[0])) && strcmp(names[mistake], argv[2]))
		mistake++;
	CHECK(mistake < (int)(sizeof(names) / sizeof(names[0])));
	int lanes = atoi(argv[3]), log_cq = atoi(argv[5]);
	uint32_t messages = (uint32_t)atoi(argv[4]), in_flight = (uint32_t)atoi(argv[6]);
	uint64_t enough_ps = (uint64_t)atoi(argv[7]) * 1000000000;
	CHECK(lanes >= 1 && lanes <= LANES);

	app_attr.app_ptr = file(argv[1], &app_attr.app_bsize);
	OK(flexio_app_create(&app_attr, &app));
	OK(flexio_func_pup_register(app, "prepare", "prepare__unpack", prepare, 8, pack));
	OK(flexio_func_register(app, "echo", &echo));
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 2);
	for (int i = 0; i < 2; i++) {
		CHECK((card[i] = ibv_open_device(list[i])) && (pd[i] = ibv_alloc_pd(card[i])));
		CHECK(!ibv_query_gid(card[i], 1, 0, &gid[i]));
	}
	process_attr.pd = pd[0];
	OK(flexio_process_create(card[0], app, &process_attr, &process));
	uint8_t *memory = calloc(LANES * SLOTS, MESSAGE + ANSWER);
	struct ibv_mr *mr = ibv_reg_mr(pd[1], memory, LANES * SLOTS * (MESSAGE + ANSWER), IBV_ACCESS_LOCAL_WRITE);
	CHECK(memory && mr);

	for (int i = 0; i < lanes; i++) {
		struct side *side = &sides[i];
		struct lane lane = { .mistake = (enum mistake)mistake, .number = (uint32_t)i, .log_cq = (uint32_t)log_cq };
		struct flexio_outbox_attr outbox_attr = { 0 };
		struct flexio_event_handler_attr handler_attr = {
			.affinity = { FLEXIO_AFFINITY_STRICT, (uint32_t)(16 + i * 16) }, .host_stub_func = echo
		};
		uint64_t status = 1;

		OK(flexio_outbox_create(process, &outbox_attr, &side->outbox));
		lane.outbox = flexio_outbox_get_id(side->outbox);
		OK(flexio_event_handler_create(process, &handler_attr, &side->handler));
		lane.cq_ring = filled(process, (size_t)64 << log_cq, 0xFF);
		lane.cq_record = filled(process, 8, 0);
		struct flexio_cq_attr cq_attr = {
			.log_cq_depth = (uint8_t)log_cq,
			.element_type = FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD,
			.thread = flexio_event_handler_get_thread(side->handler),
			.uar_id = flexio_uar_get_id(flexio_process_get_uar(process)),
			.cq_ring_qmem.daddr = lane.cq_ring,
			.cq_dbr_daddr = lane.cq_record,
		};
		OK(flexio_cq_create(process, NULL, &cq_attr, &side->cq));
		lane.cqn = flexio_cq_get_cq_num(side->cq);
		lane.receives = filled(process, (16 + 64) * RING, 0);
		lane.sends = lane.receives + 16 * RING;
		lane.qp_record = filled(process, 8, 0);
		struct flexio_qp_attr qp_attr = {
			.transport_type = FLEXIO_QPC_ST_RC,
			.log_rq_depth = LOG_RING,
			.log_sq_depth = LOG_RING,
			.pd = pd[0],
			.uar_id = cq_attr.uar_id,
			.rq_cqn = lane.cqn,
			.sq_cqn = lane.cqn,
			.qp_wq_buff_qmem.daddr = lane.receives,
			.qp_wq_dbr_qmem.daddr = lane.qp_record,
		};
		OK(flexio_qp_create(process, NULL, &qp_attr, &side->qp));
		lane.qpn = flexio_qp_get_qp_num(side->qp);
		size_t bytes = RING * (MESSAGE + ANSWER);
		lane.buffers = filled(process, bytes, 0);
		struct flexio_mkey_attr key_attr = {
			.access = IBV_ACCESS_LOCAL_WRITE, .pd = pd[0], .daddr = lane.buffers, .len = bytes
		};
		OK(flexio_device_mkey_create(process, &key_attr, &side->key));
		lane.key = flexio_mkey_get_id(side->key);
		OK(flexio_copy_from_host(process, &lane, sizeof(lane), &side->context));
		OK(flexio_process_call(process, prepare, &status, side->context));
		side->peer_cq = ibv_create_cq(card[1], 512, NULL, NULL, 0);
		CHECK(side->peer_cq);
		struct ibv_qp_init_attr init = { .send_cq = side->peer_cq, .recv_cq = side->peer_cq,
						 .cap = { 128, 128, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
		side->peer = ibv_create_qp(pd[1], &init);
		CHECK(side->peer);
		connect_pair(side, qp_attr, gid);
		if (mistake != never_run)
			OK(flexio_event_handler_run(side->handler, side->context));
	}

	uint64_t since_ps = flexcast_emu_now_ps(), calls = 0;
	bool failed = false, all = false;
	while ((!all || mistake == drains_for_ever) && !failed && flexcast_emu_now_ps() - since_ps < enough_ps) {
		all = true;
		for (int i = 0; i < lanes; i++) {
			struct side *side = &sides[i];
			struct ibv_wc wc;

			if (side->sent < messages && side->sent - side->answered < in_flight &&
			    side->sent - side->acknowledged < 100) {
				uint64_t slot = (uint64_t)i * SLOTS + side->sent % SLOTS;
				uint8_t *message = memory + slot * MESSAGE, *reply = memory + LANES * SLOTS * MESSAGE + slot * ANSWER;
				struct ibv_sge to = { (uintptr_t)reply, ANSWER, mr->lkey };
				struct ibv_sge from = { (uintptr_t)message, MESSAGE, mr->lkey };
				struct ibv_recv_wr receive = { .wr_id = side->sent, .sg_list = &to, .num_sge = 1 }, *bad_receive;
				struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;

				memcpy(message, &(uint64_t){ side->sent }, 8);
				CHECK(!ibv_post_recv(side->peer, &receive, &bad_receive));
				CHECK(!ibv_post_send(side->peer, &send, &bad_send));
				side->sent++;
			}
			if (ibv_poll_cq(side->peer_cq, 1, &wc)) {
				since_ps = flexcast_emu_now_ps();
				calls = 0;
				failed |= wc.status != IBV_WC_SUCCESS;
				if (wc.opcode & IBV_WC_RECV)
					side->answered++;
				else
					side->acknowledged++;
			}
			all &= side->answered == messages;
		}
		failed |= flexio_err_status_get(process) != 0;
		/* Nothing is due any more: nobody but this program could change that. */
		if (!flexcast_emu_relax() && calls++ > ENOUGH_CALLS)
			break;
	}
	printf("%s: %s, %u of %u answered\n", argv[2], all ? "done" : "stuck", sides[0].answered, messages);
	for (int i = 0; i < lanes; i++) {
		ibv_destroy_qp(sides[i].peer);
		flexio_qp_destroy(sides[i].qp);
		flexio_cq_destroy(sides[i].cq);
		flexio_event_handler_destroy(sides[i].handler);
		flexio_device_mkey_destroy(sides[i].key);
		flexio_outbox_destroy(sides[i].outbox);
	}
	flexio_process_destroy(process);
	return all ? 0 : 1;
}
