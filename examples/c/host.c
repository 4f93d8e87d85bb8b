/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host side: loads device.elf into the DPA of card 0, sends texts from card 1, and prints the sums that come back.
 * Usage: host device.elf [text...]
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <libflexio/flexio.h>

#include "checksum.h"

/* Every step matters: one that fails ends the program and says which. */
#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)
#define OK(call) CHECK((call) == FLEXIO_STATUS_SUCCESS)

/* The IPv4 address for RoCE v2, in the order of Linux. */
#define GID_INDEX 3
/* Polls before an answer is given up: each lets the emulated machine, or real time, go on a little. */
#define POLLS 1000000

static void *read_file(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	void *content;
	long end;

	CHECK(file && !fseek(file, 0, SEEK_END));
	end = ftell(file);
	CHECK(end > 0 && !fseek(file, 0, SEEK_SET));
	content = malloc((size_t)end);
	CHECK(content && fread(content, 1, (size_t)end, file) == (size_t)end);
	fclose(file);
	*bytes = (size_t)end;
	return content;
}

static struct ibv_context *open_card(int index)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context;

	CHECK(list && index < count);
	context = ibv_open_device(list[index]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* The key under which `prepare` is registered, and how its argument travels. */
static void prepare(void)
{
}

static void pack(void *argbuf, va_list arguments)
{
	*(uint64_t *)argbuf = va_arg(arguments, uint64_t);
}

static uint64_t device_copy(struct flexio_process *process, const void *bytes, size_t length)
{
	flexio_uintptr_t address = 0;

	OK(flexio_copy_from_host(process, (void *)(uintptr_t)bytes, length, &address));
	return address;
}

/* Device memory for a queue, filled with one byte. */
static uint64_t device_ring(struct flexio_process *process, size_t length, int fill)
{
	flexio_uintptr_t address = 0;

	OK(flexio_buf_dev_alloc(process, length, &address));
	OK(flexio_buf_dev_memset(process, fill, length, address));
	return address;
}

/* A queue pair on card 1. */
static struct ibv_qp *host_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void connect_host(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = GID_INDEX;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_device(struct flexio_qp *qp, struct flexio_qp_attr *attr, uint32_t peer, union ibv_gid gid)
{
	static const enum flexio_qp_state states[] = { FLEXIO_QP_STATE_INIT, FLEXIO_QP_STATE_RTR, FLEXIO_QP_STATE_RTS };
	struct flexio_qp_attr_opt_param_mask mask = { .qp_access_mask = true, .min_rnr_nak_timer = true };
	/* The MAC address of an emulated card ends as its GID does. */
	uint8_t mac[6] = { 2, 0, 0, 0, 0, gid.raw[15] };

	attr->vhca_port_num = 1;
	attr->remote_qp_num = peer;
	attr->rgid_or_rip = gid;
	attr->gid_table_index = GID_INDEX;
	attr->dest_mac = mac;
	attr->path_mtu = FLEXIO_QP_QPC_MTU_BYTES_1K;
	attr->min_rnr_nak_timer = 12;
	attr->retry_count = 7;
	attr->udp_sport = 0xc000;
	attr->grh = 1;
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		attr->next_state = states[i];
		OK(flexio_qp_modify(qp, attr, &mask));
	}
}

static void completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (int i = 0; i < POLLS; i++) {
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (got == 0)
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
		CHECK(wc.status == IBV_WC_SUCCESS);
		return;
	}
	CHECK(!"an answer comes");
}

static uint64_t ask(struct ibv_qp *qp, struct ibv_cq *cq, uint8_t *memory, uint32_t lkey, const char *text)
{
	uint32_t length = (uint32_t)strnlen(text, MESSAGE_BYTES);
	struct ibv_sge from = { (uintptr_t)memory, length, lkey };
	struct ibv_sge to = { (uintptr_t)memory + MESSAGE_BYTES, sizeof(uint64_t), lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	uint64_t sum;

	memcpy(memory, text, length);
	CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
	completion(cq);
	completion(cq);
	memcpy(&sum, memory + MESSAGE_BYTES, sizeof(sum));
	return sum;
}

static uint64_t expected(const char *text)
{
	uint64_t sum = 0;

	for (size_t i = 0, length = strnlen(text, MESSAGE_BYTES); i < length; i++)
		sum += (uint8_t)text[i];
	return sum;
}

int main(int argc, char **argv)
{
	static const char *const defaults[] = { "hello", "from card 1", "to the DPA of card 0" };
	const char *const *texts = argc > 2 ? (const char *const *)argv + 2 : defaults;
	int count = argc > 2 ? argc - 2 : (int)(sizeof(defaults) / sizeof(defaults[0]));
	char name[] = "checksum", no_signature[] = "";
	struct flexio_app_attr app_attr = { .app_name = name, .app_sig_sec_name = no_signature };
	struct flexio_process_attr process_attr = { 0 };
	flexio_msg_stream_attr_t stream_attr = { .data_bsize = 4096, .level = FLEXIO_MSG_DEV_INFO, .stream_name = name };
	struct flexio_event_handler_attr handler_attr = { .affinity = { FLEXIO_AFFINITY_STRICT, 16 } };
	struct flexio_outbox_attr outbox_attr = { 0 };
	struct flexio_cq_attr cq_attr = { .log_cq_depth = LOG_CQ_DEPTH, .element_type = FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD };
	struct flexio_qp_attr qp_attr = { .transport_type = FLEXIO_QPC_ST_RC, .log_rq_depth = LOG_QP_DEPTH,
					  .log_sq_depth = LOG_QP_DEPTH };
	struct flexio_mkey_attr mkey_attr = { .access = IBV_ACCESS_LOCAL_WRITE };
	struct checksum_context context = { 0 };
	struct flexio_app *app;
	struct flexio_process *process;
	struct flexio_msg_stream *stream;
	struct flexio_event_handler *handler;
	struct flexio_outbox *outbox;
	struct flexio_cq *device_cq;
	struct flexio_qp *device_qp;
	struct flexio_mkey *mkey;
	flexio_func_t *checksum = NULL;
	flexio_uintptr_t daddr;
	struct ibv_context *cards[2];
	struct ibv_pd *pds[2];
	union ibv_gid gids[2];
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint64_t zero = 0, status = 1;
	pthread_t printer;
	int wrong = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s device.elf [text...]\n", argv[0]);
		return 2;
	}
	for (int i = 0; i < 2; i++) {
		cards[i] = open_card(i);
		pds[i] = ibv_alloc_pd(cards[i]);
		CHECK(pds[i] && !ibv_query_gid(cards[i], 1, GID_INDEX, &gids[i]));
	}

	/* The program on the DPA, and its two entries. */
	app_attr.app_ptr = read_file(argv[1], &app_attr.app_bsize);
	OK(flexio_app_create(&app_attr, &app));
	OK(flexio_func_pup_register(app, "prepare", "prepare__unpack", prepare, sizeof(uint64_t), pack));
	OK(flexio_func_register(app, "checksum", &checksum));
	process_attr.pd = pds[0];
	OK(flexio_process_create(cards[0], app, &process_attr, &process));
	OK(flexio_msg_stream_create(process, &stream_attr, stdout, &printer, &stream));

	/* Queues in device memory. */
	OK(flexio_outbox_create(process, &outbox_attr, &outbox));
	handler_attr.host_stub_func = checksum;
	OK(flexio_event_handler_create(process, &handler_attr, &handler));
	context.outbox_id = flexio_outbox_get_id(outbox);
	context.cq_ring = device_ring(process, 64 << LOG_CQ_DEPTH, 0xff);
	context.cq_dbr = device_copy(process, &zero, sizeof(zero));
	cq_attr.thread = flexio_event_handler_get_thread(handler);
	cq_attr.uar_id = flexio_uar_get_id(flexio_process_get_uar(process));
	cq_attr.cq_ring_qmem.daddr = context.cq_ring;
	cq_attr.cq_dbr_daddr = context.cq_dbr;
	OK(flexio_cq_create(process, NULL, &cq_attr, &device_cq));
	context.cqn = flexio_cq_get_cq_num(device_cq);
	context.rq_ring = device_ring(process, (16 + 64) << LOG_QP_DEPTH, 0);
	context.sq_ring = context.rq_ring + (16 << LOG_QP_DEPTH);
	context.qp_dbr = device_copy(process, &zero, sizeof(zero));
	qp_attr.pd = pds[0];
	qp_attr.uar_id = cq_attr.uar_id;
	qp_attr.rq_cqn = qp_attr.sq_cqn = context.cqn;
	qp_attr.qp_wq_buff_qmem.daddr = context.rq_ring;
	qp_attr.qp_wq_dbr_qmem.daddr = context.qp_dbr;
	OK(flexio_qp_create(process, NULL, &qp_attr, &device_qp));
	context.qpn = flexio_qp_get_qp_num(device_qp);
	context.buffers = device_ring(process, QP_DEPTH * (MESSAGE_BYTES + sizeof(uint64_t)), 0);
	mkey_attr.pd = pds[0];
	mkey_attr.daddr = context.buffers;
	mkey_attr.len = QP_DEPTH * (MESSAGE_BYTES + sizeof(uint64_t));
	OK(flexio_device_mkey_create(process, &mkey_attr, &mkey));
	context.lkey = flexio_mkey_get_id(mkey);
	daddr = device_copy(process, &context, sizeof(context));
	OK(flexio_process_call(process, prepare, &status, daddr));
	CHECK(status == 0);

	/* The other end, on card 1. */
	cq = ibv_create_cq(cards[1], 16, NULL, NULL, 0);
	memory = calloc(1, 4096);
	CHECK(cq && memory);
	mr = ibv_reg_mr(pds[1], memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	qp = host_qp(pds[1], cq);
	connect_device(device_qp, &qp_attr, qp->qp_num, gids[1]);
	connect_host(qp, context.qpn, gids[0]);
	OK(flexio_event_handler_run(handler, daddr));

	for (int i = 0; i < count; i++) {
		uint64_t sum = ask(qp, cq, memory, mr->lkey, texts[i]);

		printf("\"%s\": %" PRIu64 "\n", texts[i], sum);
		wrong += sum != expected(texts[i]);
	}
	CHECK(flexio_err_status_get(process) == FLEXIO_DEV_NO_ERROR);

	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	OK(flexio_qp_destroy(device_qp));
	OK(flexio_cq_destroy(device_cq));
	OK(flexio_event_handler_destroy(handler));
	OK(flexio_device_mkey_destroy(mkey));
	OK(flexio_outbox_destroy(outbox));
	OK(flexio_msg_stream_destroy(stream));
	OK(flexio_process_destroy(process));
	OK(flexio_app_destroy(app));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_dealloc_pd(pds[i]) && !ibv_close_device(cards[i]));
	free(memory);
	free(app_attr.app_ptr);
	return wrong != 0;
}
