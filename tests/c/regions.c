/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions that change, windows of both types, memory on the card, regions at other addresses, pages on demand, thread
 * and parent domains.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "queue_pairs.h"

enum { BYTES = 4096, LOCAL = IBV_ACCESS_LOCAL_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp, *peer;
static char *source, *target;
static struct ibv_mr *source_mr;

static void connect_both(void)
{
	struct ibv_qp_attr anew = { .qp_state = IBV_QPS_RESET };

	CHECK(!ibv_modify_qp(qp, &anew, IBV_QP_STATE) && !ibv_modify_qp(peer, &anew, IBV_QP_STATE));
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;

	for (int polls = 0; polls < 1000000; polls++) {
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (got == 1)
			return wc;
	}
	CHECK(!"a completion comes");
	exit(1);
}

/* A request of `qp`, with `lkey` over its own bytes; after an error both are connected again. */
static enum ibv_wc_status request(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t bytes, uint32_t lkey, uint64_t remote,
				  uint32_t rkey)
{
	struct ibv_sge sge = { addr, bytes, lkey };
	struct ibv_send_wr work = {
		.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { remote, rkey },
	}, *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(qp, &work, &bad));
	wc = completion();
	CHECK(wc.wr_id == 9);
	if (wc.status != IBV_WC_SUCCESS)
		connect_both();
	return wc.status;
}

static enum ibv_wc_status write_to(void *remote, uint32_t rkey)
{
	memset(source, rand(), 64);
	return request(IBV_WR_RDMA_WRITE, (uintptr_t)source, 64, source_mr->lkey, (uintptr_t)remote, rkey);
}

static int arrived(const void *at)
{
	return !memcmp(source, at, 64);
}

static void changes(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, target, BYTES, LOCAL | IBV_ACCESS_REMOTE_WRITE);
	uint32_t key = mr->rkey;

	CHECK(write_to(target, key) == IBV_WC_SUCCESS && arrived(target));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) && mr->rkey == key);
	CHECK(write_to(target, key) == IBV_WC_REM_ACCESS_ERR && !arrived(target));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, target + BYTES, BYTES,
			    LOCAL | IBV_ACCESS_REMOTE_WRITE));
	CHECK(mr->addr == target + BYTES && mr->length == BYTES);
	CHECK(write_to(target, key) == IBV_WC_REM_ACCESS_ERR);
	CHECK(write_to(target + BYTES, key) == IBV_WC_SUCCESS && arrived(target + BYTES));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0) && mr->pd == other_pd);
	CHECK(write_to(target + BYTES, key) == IBV_WC_REM_ACCESS_ERR);
	/* What is refused changes nothing. */
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(write_to(target + BYTES, key) == IBV_WC_SUCCESS && arrived(target + BYTES));
	CHECK(!ibv_dereg_mr(mr));
}

/* Address 0, or another, stands for the first byte. */
static void addresses(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, target, BYTES, LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);

	CHECK(mr && write_to((void *)64, mr->rkey) == IBV_WC_SUCCESS && arrived(target + 64));
	CHECK(write_to(target, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	/* Other rights leave the addresses as they are; another range has its own. */
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL | IBV_ACCESS_REMOTE_WRITE));
	CHECK(write_to((void *)96, mr->rkey) == IBV_WC_SUCCESS && arrived(target + 96));
	CHECK(request(IBV_WR_RDMA_WRITE, BYTES - 8, 16, mr->lkey, 0, mr->rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, target + BYTES, BYTES, 0));
	CHECK(write_to(target + BYTES, mr->rkey) == IBV_WC_SUCCESS && arrived(target + BYTES));
	CHECK(!ibv_dereg_mr(mr));
	mr = ibv_reg_mr_iova(pd, target, BYTES, 1ULL << 40, LOCAL | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && write_to((void *)((1ULL << 40) + 128), mr->rkey) == IBV_WC_SUCCESS && arrived(target + 128));
	CHECK(!ibv_dereg_mr(mr));
}

static enum ibv_wc_status bind_second(struct ibv_qp *of, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr,
				      uint64_t length, unsigned int access)
{
	struct ibv_send_wr work = { .wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	work.bind_mw.mw = mw;
	work.bind_mw.rkey = rkey;
	work.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)target, length, access };
	if (ibv_post_send(of, &work, &bad))
		return -1;
	wc = completion();
	CHECK(wc.wr_id == 4 && (wc.status != IBV_WC_SUCCESS || wc.opcode == IBV_WC_BIND_MW));
	if (wc.status != IBV_WC_SUCCESS)
		connect_both();
	return wc.status;
}

static void windows(void)
{
	/* The region gives peers nothing; its windows do. */
	struct ibv_mr *mr = ibv_reg_mr(pd, target, BYTES, LOCAL | IBV_ACCESS_MW_BIND);
	struct ibv_mr *closed = ibv_reg_mr(pd, target, BYTES, LOCAL);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {
		.wr_id = 3, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)target, 512, IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_send_wr invalidate = {
		.wr_id = 5, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	uint32_t first;

	CHECK(mr && closed && one && two && !ibv_alloc_mw(pd, 7) && errno == EOPNOTSUPP);
	CHECK(write_to(target, one->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_bind_mw(peer, one, &bind) && completion().opcode == IBV_WC_BIND_MW);
	CHECK(write_to(target, one->rkey) == IBV_WC_SUCCESS && arrived(target));
	CHECK(write_to(target + 480, one->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_RDMA_READ, (uintptr_t)source, 64, source_mr->lkey, (uintptr_t)target, one->rkey) ==
	      IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	/* Another binding ends the first, and no bytes end every one. */
	first = one->rkey;
	bind.bind_info.length = 1024;
	CHECK(!ibv_bind_mw(peer, one, &bind) && completion().status == IBV_WC_SUCCESS && one->rkey != first);
	CHECK(write_to(target, first) == IBV_WC_REM_ACCESS_ERR);
	CHECK(write_to(target + 480, one->rkey) == IBV_WC_SUCCESS);
	bind.bind_info.length = 0;
	CHECK(!ibv_bind_mw(peer, one, &bind) && completion().status == IBV_WC_SUCCESS);
	CHECK(write_to(target, one->rkey) == IBV_WC_REM_ACCESS_ERR);
	/* Regions that do not allow it. */
	bind.bind_info.length = 64;
	bind.bind_info.mr = closed;
	CHECK(!ibv_bind_mw(peer, one, &bind) && completion().status == IBV_WC_MW_BIND_ERR);
	connect_both();
	bind.bind_info.mr = mr;
	bind.bind_info.length = 1ULL << 33;
	CHECK(ibv_bind_mw(peer, one, &bind) == EOPNOTSUPP);

	/* The second type: a key that the program chooses, for the queue pair that it was posted to. */
	first = two->rkey ^ 0x55;
	CHECK(bind_second(peer, two, first + 0x100, mr, 512, IBV_ACCESS_REMOTE_WRITE) == (enum ibv_wc_status)-1);
	CHECK(bind_second(peer, two, first, mr, 512, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
	CHECK(write_to(target, first) == IBV_WC_SUCCESS && arrived(target));
	CHECK(bind_second(peer, two, first + 1, mr, 512, IBV_ACCESS_REMOTE_WRITE) != IBV_WC_SUCCESS);
	invalidate.invalidate_rkey = first;
	CHECK(!ibv_post_send(peer, &invalidate, &bad) && completion().status == IBV_WC_SUCCESS);
	CHECK(write_to(target, first) == IBV_WC_REM_ACCESS_ERR);
	CHECK(bind_second(qp, two, first, mr, 512, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
	CHECK(write_to(target, first) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dealloc_mw(one) && !ibv_dealloc_mw(two) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(closed));
}

static void on_the_card(void)
{
	struct ibv_device_attr_ex device = { .comp_mask = 0 };
	struct ibv_alloc_dm_attr attr = { .length = 1 << 30 };
	char there[256], back[256];
	struct ibv_mr *mr;
	struct ibv_dm *dm;

	CHECK(!ibv_query_device_ex(context, NULL, &device) && device.max_dm_size >= 4096);
	CHECK(!ibv_alloc_dm(context, &attr) && errno == ENOMEM);
	attr.length = 4096;
	dm = ibv_alloc_dm(context, &attr);
	CHECK(dm);
	memset(there, 7, sizeof(there));
	CHECK(!ibv_memcpy_to_dm(dm, 256, there, sizeof(there)));
	CHECK(!ibv_memcpy_from_dm(back, dm, 256, sizeof(back)) && !memcmp(there, back, sizeof(back)));
	CHECK(ibv_memcpy_to_dm(dm, 4000, there, sizeof(there)) == EFAULT && ibv_memcpy_to_dm(dm, 2, there, 4) == EFAULT);
	CHECK(!ibv_reg_dm_mr(pd, dm, 0, 64, LOCAL) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(pd, dm, 4064, 64, LOCAL | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	mr = ibv_reg_dm_mr(pd, dm, 256, 512, LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
	CHECK(mr && write_to((void *)16, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(back, dm, 272, 64) && arrived(back));
	CHECK(request(IBV_WR_RDMA_READ, 0, 64, mr->lkey, 16, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(mr) && !ibv_free_dm(dm));
}

/* Pages that come after the registration, and one that is not there. */
static void on_demand(void)
{
	struct ibv_device_attr_ex device = { .comp_mask = 0 };
	char *pages = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_sge sge;
	struct ibv_mr *mr;

	CHECK(pages != MAP_FAILED && !ibv_query_device_ex(context, NULL, &device));
	CHECK(device.odp_caps.general_caps == IBV_ODP_SUPPORT);
	CHECK(device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE);
	CHECK(!munmap(pages, 2 * BYTES));
	CHECK(!ibv_reg_mr(pd, pages, 2 * BYTES, LOCAL) && errno == EFAULT);
	mr = ibv_reg_mr(pd, pages, 2 * BYTES, LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND);
	CHECK(mr && write_to(pages, mr->rkey) == IBV_WC_REM_OP_ERR);
	CHECK(mmap(pages, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == pages);
	sge = (struct ibv_sge){ (uintptr_t)pages, BYTES, mr->lkey };
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	CHECK(write_to(pages, mr->rkey) == IBV_WC_SUCCESS && arrived(pages));
	CHECK(write_to(pages + BYTES, mr->rkey) == IBV_WC_REM_OP_ERR);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL) == IBV_REREG_MR_ERR_INPUT);
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, LOCAL | IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	CHECK(!ibv_dereg_mr(mr) && !munmap(pages, BYTES));
}

static void domains(void)
{
	struct ibv_td_init_attr td_attr = { .comp_mask = 0 };
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_mr *mr;

	CHECK(td && parent && parent != pd);
	mr = ibv_reg_mr(parent, target, BYTES, LOCAL | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && mr->pd == parent && write_to(target, mr->rkey) == IBV_WC_SUCCESS && arrived(target));
	CHECK(ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	attr.td = NULL;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EOPNOTSUPP);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	CHECK(list && (context = ibv_open_device(list[0])));
	pd = ibv_alloc_pd(context);
	other_pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(pd && other_pd && cq);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	peer = ibv_create_qp(pd, &init);
	CHECK(qp && peer && !posix_memalign((void **)&source, 4096, BYTES) && !posix_memalign((void **)&target, 4096, 2 * BYTES));
	memset(target, 0, 2 * BYTES);
	source_mr = ibv_reg_mr(pd, source, BYTES, LOCAL);
	CHECK(source_mr);
	connect_both();
	changes();
	addresses();
	windows();
	on_the_card();
	on_demand();
	domains();
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(source_mr));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other_pd) && !ibv_close_device(context));
	ibv_free_device_list(list);
	puts("all as promised");
	return 0;
}
