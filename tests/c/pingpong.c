/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A FlexIO program in C, from opening the devices to closing them: card 0 runs the image `pingpong` on its DPA, a host on
 * card 1 sends it messages and reads its memory. Arguments: the image, and the ABI hash that it was built with (hex).
 */
#include <doca_dev.h>
#include "support.h"

enum {
	LOG_DEPTH = 2,
	DEPTH = 1 << LOG_DEPTH,
	MESSAGE_BYTES = 64,
	MESSAGES = 2 * DEPTH + 1,
	POLLS = 100000,
};

/* Layouts of the image's ABI. */
struct queue {
	uint64_t ring;
	uint64_t doorbell_record;
	uint32_t number;
	uint32_t log_depth;
	uint64_t reserved;
};

struct pingpong_context {
	uint64_t abi_hash;
	uint32_t outbox_id;
	uint32_t lkey;
	uint64_t buffers;
	uint32_t buffer_bytes;
	uint32_t prepared;
	struct queue receive_cq;
	struct queue receive_queue;
	struct queue send_cq;
	struct queue send_queue;
	uint64_t consumed;
	uint64_t completed;
	uint64_t send_consumed;
	uint64_t errors;
	uint64_t configured;
	uint64_t reserved[7];
};
_Static_assert(sizeof(struct pingpong_context) == 256, "the image's layout");

static void prepare(void)
{
}

static uint64_t bring_up_answer(uint64_t argument, uint64_t abi_hash)
{
	uint64_t mixed = argument ^ abi_hash;

	return ((mixed << 17) | (mixed >> 47)) * UINT64_C(0x9E3779B97F4A7C15);
}

/* MAC address of a card, from the third of the libraries: all three see one machine. */
static void card_mac(const char *ibdev, uint8_t mac[6])
{
	struct doca_devinfo **list = NULL;
	uint32_t count = 0, found = 0;

	CHECK(doca_devinfo_create_list(&list, &count) == DOCA_SUCCESS);
	for (uint32_t i = 0; i < count; i++) {
		char name[64];

		CHECK(doca_devinfo_get_ibdev_name(list[i], name, sizeof(name)) == DOCA_SUCCESS);
		if (strcmp(name, ibdev) != 0)
			continue;
		CHECK(doca_devinfo_get_mac_addr(list[i], mac, 6) == DOCA_SUCCESS);
		found++;
	}
	CHECK(found == 1);
	CHECK(doca_devinfo_destroy_list(list) == DOCA_SUCCESS);
}

static union ibv_gid card_gid(struct ibv_context *context)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.gid_tbl_len > 0);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	return gid;
}

static void registration(struct flexio_app *app)
{
	char name[FLEXIO_MAX_NAME_LEN + 1], unpack[FLEXIO_MAX_NAME_LEN + 1];
	flexio_func_arg_pack_fn_t *pack = NULL;
	flexio_uintptr_t addr = 0, unpack_addr = 0;
	size_t argbuf_bytes = 0;
	uint32_t pup = 0;

	OK(flexio_func_pup_register(app, "bring_up", "bring_up__unpack", bring_up, sizeof(uint64_t), pack_u64));
	OK(flexio_func_pup_register(app, "echo", "echo__unpack", echo, sizeof(uint64_t), pack_u64));
	OK(flexio_func_pup_register(app, "prepare", "prepare__unpack", prepare, sizeof(uint64_t), pack_u64));
	OK(flexio_func_get_register_info(app, bring_up, &pup, name, unpack, sizeof(name), &argbuf_bytes, &pack, &addr,
					 &unpack_addr));
	CHECK(pup == 1 && argbuf_bytes == 8 && pack == pack_u64 && addr && unpack_addr && addr != unpack_addr);
	printf("registered %s with %s\n", name, unpack);
}

static void calls(struct flexio_process *process, uint64_t abi_hash)
{
	static const uint64_t arguments[] = { 0, 1, UINT64_C(0x0123456789abcdef), UINT64_MAX };
	uint64_t answer = 0;

	for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++) {
		OK(flexio_process_call(process, bring_up, &answer, arguments[i]));
		CHECK(answer == bring_up_answer(arguments[i], abi_hash));
		OK(flexio_process_call(process, echo, &answer, arguments[i]));
		CHECK(answer == arguments[i]);
	}
	CHECK(flexio_err_status_get(process) == FLEXIO_DEV_NO_ERROR);
	printf("calls answered as expected\n");
}

/* A queue's doorbell record and ring; completion rings start with all bits set: owner bit 1, opcode invalid. */
static struct queue device_queue(struct flexio_process *process, uint64_t ring_bytes, int fill)
{
	uint64_t zero = 0;
	struct queue queue = { .log_depth = LOG_DEPTH };

	OK(flexio_copy_from_host(process, &zero, sizeof(zero), &queue.doorbell_record));
	OK(flexio_buf_dev_alloc(process, ring_bytes, &queue.ring));
	OK(flexio_buf_dev_memset(process, fill, ring_bytes, queue.ring));
	return queue;
}

static struct flexio_cq *device_cq(struct flexio_process *process, struct flexio_event_handler *handler,
				   struct queue *queue)
{
	struct flexio_cq_attr attr = {
		.log_cq_depth = LOG_DEPTH,
		.element_type = FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD,
		.thread = flexio_event_handler_get_thread(handler),
		.uar_id = flexio_uar_get_id(flexio_process_get_uar(process)),
	};
	struct flexio_cq *cq = NULL;

	*queue = device_queue(process, 64 << LOG_DEPTH, 0xff);
	attr.cq_ring_qmem.memtype = FLEXIO_MEMTYPE_DPA;
	attr.cq_ring_qmem.daddr = queue->ring;
	attr.cq_dbr_daddr = queue->doorbell_record;
	OK(flexio_cq_create(process, NULL, &attr, &cq));
	queue->number = flexio_cq_get_cq_num(cq);
	CHECK(queue->number != UINT32_MAX);
	return cq;
}

static struct ibv_qp *host_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t peer, union ibv_gid gid)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.rq_psn = 11;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 22;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	return qp;
}

static void connect_device_qp(struct flexio_qp *qp, struct flexio_qp_attr *attr, uint32_t peer, union ibv_gid gid,
			      uint8_t *mac)
{
	struct flexio_qp_attr_opt_param_mask mask = { .qp_access_mask = true, .min_rnr_nak_timer = true };

	CHECK(flexio_qp_state_get(qp) == FLEXIO_QP_STATE_RST);
	attr->next_state = FLEXIO_QP_STATE_INIT;
	attr->qp_access_mask = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	attr->vhca_port_num = 1;
	attr->remote_qp_num = peer;
	attr->rgid_or_rip = gid;
	attr->dest_mac = mac;
	attr->path_mtu = FLEXIO_QP_QPC_MTU_BYTES_1K;
	attr->next_rcv_psn = 22;
	attr->next_send_psn = 11;
	attr->min_rnr_nak_timer = 12;
	attr->retry_count = 7;
	attr->udp_sport = 0xc000;
	attr->grh = 1;
	OK(flexio_qp_modify(qp, attr, &mask));
	attr->next_state = FLEXIO_QP_STATE_RTR;
	OK(flexio_qp_modify(qp, attr, &mask));
	attr->next_state = FLEXIO_QP_STATE_RTS;
	OK(flexio_qp_modify(qp, attr, &mask));
	CHECK(flexio_qp_state_get(qp) == FLEXIO_QP_STATE_RTS);
}

static struct ibv_wc completion(struct ibv_cq *cq)
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
		return wc;
	}
	CHECK(!"a completion comes within a bounded number of polls");
	abort();
}

/* Sends messages one by one and compares what comes back. */
static void exchange(struct ibv_qp *qp, struct ibv_cq *cq, uint8_t *memory, uint32_t lkey)
{
	uint8_t *sent = memory, *received = memory + MESSAGE_BYTES;

	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_sge from = { (uint64_t)(uintptr_t)sent, MESSAGE_BYTES, lkey };
		struct ibv_sge to = { (uint64_t)(uintptr_t)received, MESSAGE_BYTES, lkey };
		struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_receive;
		struct ibv_send_wr send = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND },
				   *bad_send;
		unsigned int seen = 0;

		memset(received, 0, MESSAGE_BYTES);
		for (int byte = 0; byte < MESSAGE_BYTES; byte++)
			sent[byte] = (uint8_t)(7 * i + byte + 1);
		CHECK(!ibv_post_recv(qp, &receive, &bad_receive));
		CHECK(!ibv_post_send(qp, &send, &bad_send));
		while (seen != 3) {
			struct ibv_wc wc = completion(cq);

			CHECK(wc.wr_id == 1 || wc.wr_id == 2);
			CHECK(wc.wr_id == 2 || (wc.opcode == IBV_WC_RECV && wc.byte_len == MESSAGE_BYTES));
			seen |= (unsigned int)wc.wr_id;
		}
		CHECK(memcmp(sent, received, MESSAGE_BYTES) == 0);
	}
	printf("%d messages of %d bytes came back\n", MESSAGES, MESSAGE_BYTES);
}

/* Device memory comes back by RDMA: the interface has no copy from device to host. */
static void read_device(struct ibv_qp *qp, struct ibv_cq *cq, void *to, uint32_t bytes, uint32_t lkey, uint64_t from,
			uint32_t rkey)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)to, bytes, lkey };
	struct ibv_send_wr wr = { .wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ }, *bad;
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = from;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	wc = completion(cq);
	CHECK(wc.wr_id == 3 && wc.opcode == IBV_WC_RDMA_READ);
}

/* A log line of the image: `~`, hexadecimal digits. */
static void check_log(FILE *log)
{
	char line[512], rest;

	rewind(log);
	for (int i = 0; i < 4; i++) {
		CHECK(fgets(line, sizeof(line), log));
		CHECK(line[0] == '~' && strspn(line + 1, "0123456789abcdef") == strlen(line) - 2);
		CHECK(line[strlen(line) - 1] == '\n');
	}
	CHECK(fread(&rest, 1, 1, log) == 0);
	printf("the stream carried one line of each bring-up\n");
}

int main(int argc, char **argv)
{
	char app_name[] = "pingpong", stream_name[] = "log";
	struct flexio_heap_mem_info before, after;
	struct pingpong_context context = { .buffer_bytes = MESSAGE_BYTES }, seen;
	struct flexio_event_handler_attr handler_attr = { .affinity = { FLEXIO_AFFINITY_STRICT, 5 } };
	flexio_msg_stream_attr_t stream_attr = {
		.data_bsize = 4096,
		.sync_mode = FLEXIO_LOG_DEV_SYNC_MODE_SYNC,
		.level = FLEXIO_MSG_DEV_DEBUG,
		.stream_name = stream_name,
	};
	struct flexio_outbox_attr outbox_attr = { .en_pcc = 0 };
	struct flexio_mkey_attr mkey_attr = { .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
	struct flexio_qp_attr qp_attr = { .transport_type = FLEXIO_QPC_ST_RC };
	struct flexio_process *process = NULL;
	struct flexio_msg_stream *stream = NULL;
	struct flexio_window *window = NULL;
	struct flexio_outbox *outbox = NULL;
	struct flexio_event_handler *handler = NULL;
	struct flexio_mkey *mkey = NULL, *context_mkey = NULL;
	struct flexio_cq *receive_cq, *send_cq;
	struct flexio_qp *qp = NULL;
	flexio_uintptr_t context_daddr = 0, buffers = 0, rings = 0, dbr = 0;
	flexio_func_t *pong = NULL;
	struct ibv_context *cards[2];
	struct ibv_pd *pds[2];
	uint8_t *memory, mac[6];
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *peer;
	uint64_t zero = 0, status = 1;
	struct flexio_app *app;
	pthread_t printer;
	FILE *log = tmpfile();

	CHECK(argc == 3 && log);
	context.abi_hash = strtoull(argv[2], NULL, 16);

	for (int i = 0; i < 2; i++) {
		cards[i] = open_card(i);
		pds[i] = ibv_alloc_pd(cards[i]);
		CHECK(pds[i]);
	}
	app = create_app(app_name, argv[1]);
	printf("application %s\n", flexio_app_get_name(app));
	registration(app);
	OK(flexio_func_register(app, "pong", &pong));

	{
		struct flexio_process_attr attr = { .pd = pds[0] };

		OK(flexio_process_create(cards[0], app, &attr, &process));
		CHECK(flexio_process_get_pd(process) == pds[0]);
	}
	OK(flexio_process_mem_info_get(process, &before));
	printf("heap at %#" PRIx64 " of %zu MiB\n", before.base_addr, before.size >> 20);

	OK(flexio_msg_stream_create(process, &stream_attr, log, &printer, &stream));
	calls(process, context.abi_hash);
	OK(flexio_msg_stream_flush(stream));
	check_log(log);

	OK(flexio_window_create(process, pds[0], &window));
	CHECK(flexio_window_get_id(window) != UINT32_MAX);
	OK(flexio_outbox_create(process, &outbox_attr, &outbox));
	context.outbox_id = flexio_outbox_get_id(outbox);
	CHECK(context.outbox_id != UINT32_MAX && flexio_outbox_get_uar(outbox) == flexio_process_get_uar(process));
	printf("message stream, window and outbox made\n");

	handler_attr.host_stub_func = pong;
	OK(flexio_event_handler_create(process, &handler_attr, &handler));
	CHECK(flexio_event_handler_get_id(handler) != UINT32_MAX);
	receive_cq = device_cq(process, handler, &context.receive_cq);
	send_cq = device_cq(process, handler, &context.send_cq);

	/* One buffer: the receive ring, then the send ring; one doorbell record. */
	OK(flexio_copy_from_host(process, &zero, sizeof(zero), &dbr));
	OK(flexio_buf_dev_alloc(process, (16 + 64) << LOG_DEPTH, &rings));
	qp_attr.uar_id = flexio_uar_get_id(flexio_process_get_uar(process));
	qp_attr.pd = pds[0];
	qp_attr.log_rq_depth = LOG_DEPTH;
	qp_attr.log_sq_depth = LOG_DEPTH;
	qp_attr.rq_cqn = context.receive_cq.number;
	qp_attr.sq_cqn = context.send_cq.number;
	qp_attr.qp_wq_buff_qmem.daddr = rings;
	qp_attr.qp_wq_dbr_qmem.daddr = dbr;
	OK(flexio_qp_create(process, NULL, &qp_attr, &qp));
	context.receive_queue = (struct queue){ rings, dbr, flexio_qp_get_qp_num(qp), LOG_DEPTH, 0 };
	context.send_queue = context.receive_queue;
	context.send_queue.ring += 16 << LOG_DEPTH;
	printf("event handler, completion queues and queue pair made\n");

	OK(flexio_buf_dev_alloc(process, DEPTH * MESSAGE_BYTES, &buffers));
	mkey_attr.pd = pds[0];
	mkey_attr.daddr = buffers;
	mkey_attr.len = DEPTH * MESSAGE_BYTES;
	OK(flexio_device_mkey_create(process, &mkey_attr, &mkey));
	context.buffers = buffers;
	context.lkey = flexio_mkey_get_id(mkey);
	OK(flexio_buf_dev_alloc(process, sizeof(context), &context_daddr));
	CHECK(context_daddr % 64 == 0);
	OK(flexio_host2dev_memcpy(process, &context, sizeof(context), context_daddr));
	OK(flexio_process_call(process, prepare, &status, context_daddr));
	printf("prepare returned %" PRIu64 "\n", status);
	mkey_attr.daddr = context_daddr;
	mkey_attr.len = sizeof(context);
	OK(flexio_device_mkey_create(process, &mkey_attr, &context_mkey));

	cq = ibv_create_cq(cards[1], 16, NULL, NULL, 0);
	memory = calloc(1, 4096);
	CHECK(cq && memory);
	mr = ibv_reg_mr(pds[1], memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	peer = host_qp(pds[1], cq, context.receive_queue.number, card_gid(cards[0]));
	card_mac("mlx5_1", mac);
	connect_device_qp(qp, &qp_attr, peer->qp_num, card_gid(cards[1]), mac);
	OK(flexio_event_handler_run(handler, context_daddr));
	exchange(peer, cq, memory, mr->lkey);

	read_device(peer, cq, memory, sizeof(seen), mr->lkey, context_daddr, flexio_mkey_get_id(context_mkey));
	memcpy(&seen, memory, sizeof(seen));
	CHECK(seen.abi_hash == context.abi_hash && seen.prepared == 1);
	printf("the device counts %" PRIu64 " messages, %" PRIu64 " errors\n", seen.consumed, seen.errors);
	CHECK(flexio_err_status_get(process) == FLEXIO_DEV_NO_ERROR);

	CHECK(!ibv_destroy_qp(peer));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	free(memory);
	OK(flexio_qp_destroy(qp));
	OK(flexio_cq_destroy(send_cq));
	OK(flexio_cq_destroy(receive_cq));
	OK(flexio_event_handler_destroy(handler));
	OK(flexio_device_mkey_destroy(context_mkey));
	OK(flexio_device_mkey_destroy(mkey));
	OK(flexio_outbox_destroy(outbox));
	OK(flexio_window_destroy(window));
	OK(flexio_msg_stream_destroy(stream));
	fclose(log);
	{
		flexio_uintptr_t used[] = { context_daddr, buffers, rings, dbr,
					    context.receive_cq.ring, context.receive_cq.doorbell_record,
					    context.send_cq.ring, context.send_cq.doorbell_record };

		for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++)
			OK(flexio_buf_dev_free(process, used[i]));
	}
	OK(flexio_process_mem_info_get(process, &after));
	CHECK(after.allocated == before.allocated && after.requested == before.requested);
	OK(flexio_process_destroy(process));
	OK(flexio_app_destroy(app));
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_dealloc_pd(pds[i]));
		CHECK(!ibv_close_device(cards[i]));
	}
	printf("destroyed in order\n");
	return 0;
}
