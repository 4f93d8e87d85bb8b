/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verbs program that knows nothing of the emulator: one of several processes, each with a card. Each sends datagrams to a
 * multicast group that all are members of, then writes to every other over a reliable connection. What arrives is compared.
 *
 * Arguments: rank, number of processes, and a folder through which they send one another their numbers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST = 16,
	DATAGRAMS = 32,
	DATAGRAM_BYTES = 2048,
	GRH_BYTES = 40,
	SLOT_BYTES = DATAGRAM_BYTES + 64,
	WRITE_BYTES = 20000,
	QKEY = 0x11111111,
	MULTICAST_QPN = 0xFFFFFF,
	PATIENCE_S = 60,
};

static int rank, ranks;
static const char *folder;

#define CHECK(condition)                                                                              \
	do {                                                                                          \
		if (!(condition)) {                                                                   \
			fprintf(stderr, "rank %d, line %d: %s (%s)\n", rank, __LINE__, #condition, strerror(errno)); \
			exit(1);                                                                      \
		}                                                                                     \
	} while (0)

/* What a process sends the others. */
struct card {
	union ibv_gid gid;
	uint32_t qpn[MOST];
	uint64_t address;
	uint32_t rkey;
};

static void in_time(time_t since)
{
	CHECK(time(NULL) - since < PATIENCE_S);
}

/* Sends it to the others under a name, and learns from all of them: a barrier, too. */
static void exchange(const char *name, const struct card *own, struct card *all)
{
	char path[512], hidden[512];
	time_t begun = time(NULL);
	FILE *file;

	snprintf(hidden, sizeof(hidden), "%s/.%s.%d", folder, name, rank);
	snprintf(path, sizeof(path), "%s/%s.%d", folder, name, rank);
	CHECK((file = fopen(hidden, "wb")) != NULL);
	CHECK(fwrite(own, sizeof(*own), 1, file) == 1);
	CHECK(fclose(file) == 0 && rename(hidden, path) == 0);
	for (int other = 0; other < ranks; other++) {
		snprintf(path, sizeof(path), "%s/%s.%d", folder, name, other);
		while ((file = fopen(path, "rb")) == NULL) {
			in_time(begun);
			usleep(1000);
		}
		CHECK(fread(&all[other], sizeof(all[other]), 1, file) == 1);
		fclose(file);
	}
}

static void fill(uint8_t *bytes, size_t len, int seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251 + (size_t)seed * 37);
}

static struct ibv_qp *queue_pair(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, uint32_t receives)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = DATAGRAMS, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp != NULL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	return qp;
}

static struct ibv_ah_attr path_to(union ibv_gid gid)
{
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };

	return path;
}

static void connect_to(struct ibv_qp *qp, const struct card *other)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->qpn[rank],
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = path_to(other->gid),
	};

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Takes `count` completions of receives and `sends` of sends. */
static void complete(struct ibv_cq *cq, int receives, int sends, void (*each)(const struct ibv_wc *))
{
	time_t begun = time(NULL);

	while (receives > 0 || sends > 0) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (got == 0) {
			in_time(begun);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "rank %d: %s\n", rank, ibv_wc_status_str(wc.status));
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV) {
			receives--;
			if (each)
				each(&wc);
		} else {
			sends--;
		}
	}
	CHECK(receives == 0 && sends == 0);
}

static uint8_t *memory;
static int seen[MOST][DATAGRAMS];

/* A datagram: its immediate says from whom, and the how many-th. */
static void compare(const struct ibv_wc *wc)
{
	uint32_t immediate = ntohl(wc->imm_data);
	int from = (int)(immediate >> 16), number = (int)(immediate & 0xFFFF);
	uint8_t expected[DATAGRAM_BYTES];

	CHECK(from < ranks && number < DATAGRAMS);
	CHECK(wc->byte_len == GRH_BYTES + DATAGRAM_BYTES);
	fill(expected, sizeof(expected), from * DATAGRAMS + number);
	CHECK(memcmp(memory + wc->wr_id * SLOT_BYTES + GRH_BYTES, expected, sizeof(expected)) == 0);
	seen[from][number]++;
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *datagrams, *connected[MOST] = { 0 };
	struct ibv_ah *group;
	struct ibv_ah_attr path;
	struct card own, all[MOST];
	union ibv_gid group_gid = { .raw = { [10] = 0xFF, [11] = 0xFF, [12] = 239, [13] = 1, [14] = 2, [15] = 3 } };
	struct ibv_qp_attr attr;
	size_t slots, source, target, bytes;
	int listed;

	if (argc != 4)
		return 2;
	rank = atoi(argv[1]);
	ranks = atoi(argv[2]);
	folder = argv[3];
	CHECK(ranks > 1 && ranks <= MOST && rank >= 0 && rank < ranks);
	memset(&own, 0, sizeof(own));

	CHECK((list = ibv_get_device_list(&listed)) != NULL && listed > 0);
	CHECK((context = ibv_open_device(list[0])) != NULL);
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)) != NULL);
	CHECK((cq = ibv_create_cq(context, 2 * DATAGRAMS * MOST, NULL, NULL, 0)) != NULL);
	CHECK(ibv_query_gid(context, 1, 0, &own.gid) == 0);

	/* Receives of datagrams, what is sent, and where each of the others writes. */
	slots = (size_t)ranks * DATAGRAMS;
	source = slots * SLOT_BYTES;
	target = source + DATAGRAMS * DATAGRAM_BYTES + WRITE_BYTES;
	bytes = target + (size_t)ranks * WRITE_BYTES;
	CHECK((memory = calloc(1, bytes)) != NULL);
	CHECK((mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);

	datagrams = queue_pair(pd, cq, IBV_QPT_UD, (uint32_t)slots);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(datagrams, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(datagrams, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	for (size_t slot = 0; slot < slots; slot++) {
		struct ibv_sge sge = { (uintptr_t)memory + slot * SLOT_BYTES, SLOT_BYTES, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

		CHECK(ibv_post_recv(datagrams, &wr, &bad) == 0);
	}
	CHECK(ibv_attach_mcast(datagrams, &group_gid, 0) == 0);
	path = path_to(group_gid);
	CHECK((group = ibv_create_ah(pd, &path)) != NULL);

	for (int other = 0; other < ranks; other++) {
		if (other != rank) {
			connected[other] = queue_pair(pd, cq, IBV_QPT_RC, 4);
			own.qpn[other] = connected[other]->qp_num;
		}
	}
	own.address = (uintptr_t)memory + target;
	own.rkey = mr->rkey;
	exchange("card", &own, all);
	for (int other = 0; other < ranks; other++) {
		if (other != rank) {
			struct ibv_recv_wr wr = { .wr_id = (uint64_t)other }, *bad;

			connect_to(connected[other], &all[other]);
			CHECK(ibv_post_recv(connected[other], &wr, &bad) == 0);
		}
	}
	exchange("ready", &own, all);

	/* All to the group; the own ones come back inside the card. */
	for (int number = 0; number < DATAGRAMS; number++) {
		uint8_t *from = memory + source + (size_t)number * DATAGRAM_BYTES;
		struct ibv_sge sge = { (uintptr_t)from, DATAGRAM_BYTES, mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
			.imm_data = htonl((uint32_t)rank << 16 | (uint32_t)number),
			.wr = { .ud = { .ah = group, .remote_qpn = MULTICAST_QPN, .remote_qkey = QKEY } },
		}, *bad;

		fill(from, DATAGRAM_BYTES, rank * DATAGRAMS + number);
		CHECK(ibv_post_send(datagrams, &wr, &bad) == 0);
	}
	complete(cq, ranks * DATAGRAMS, DATAGRAMS, compare);
	for (int from = 0; from < ranks; from++)
		for (int number = 0; number < DATAGRAMS; number++)
			CHECK(seen[from][number] == 1);
	exchange("datagrams", &own, all);

	/* To every other over its connection. */
	for (int other = 0; other < ranks; other++) {
		uint8_t *from = memory + source + DATAGRAMS * DATAGRAM_BYTES;
		struct ibv_sge sge = { (uintptr_t)from, WRITE_BYTES, mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl((uint32_t)rank),
			.wr = { .rdma = { all[other].address + (uint64_t)rank * WRITE_BYTES, all[other].rkey } },
		}, *bad;

		if (other == rank)
			continue;
		fill(from, WRITE_BYTES, 1000 + rank);
		CHECK(ibv_post_send(connected[other], &wr, &bad) == 0);
	}
	complete(cq, ranks - 1, ranks - 1, NULL);
	for (int other = 0; other < ranks; other++) {
		static uint8_t expected[WRITE_BYTES];

		if (other == rank)
			continue;
		fill(expected, WRITE_BYTES, 1000 + other);
		CHECK(memcmp(memory + target + (size_t)other * WRITE_BYTES, expected, WRITE_BYTES) == 0);
	}
	/* Nobody goes before all have what they wait for: an acknowledgement might be lost with its card. */
	exchange("done", &own, all);

	CHECK(ibv_detach_mcast(datagrams, &group_gid, 0) == 0);
	CHECK(ibv_destroy_ah(group) == 0 && ibv_destroy_qp(datagrams) == 0);
	for (int other = 0; other < ranks; other++)
		CHECK(other == rank || ibv_destroy_qp(connected[other]) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	free(memory);
	printf("rank %d of %d: all arrived\n", rank, ranks);
	return 0;
}
