/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that rdma-core's header makes through the operation tables of a context, and that emulated cards have nothing for.
 * Compiled with the system's header. A line for each call: its name, and the error that it gives, or 0. */
#include <errno.h>
#include <stdio.h>
#include <infiniband/verbs.h>

#define POINTER(name, call) (errno = 0, printf("%s %d\n", #name, (call) ? 0 : errno))
#define STATUS(name, call) printf("%s %d\n", #name, (call))

int main(void)
{
	struct ibv_context *context = ibv_open_device(*ibv_get_device_list(NULL));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	/* Objects that there cannot be: the header reads their context alone. */
	struct ibv_srq srq = { .context = context };
	struct ibv_wq wq = { .context = context };
	struct ibv_xrcd xrcd = { .context = context };
	struct ibv_flow flow = { .context = context };
	struct ibv_flow_action action = { .context = context };
	struct ibv_counters counters = { .context = context };
	struct ibv_rwq_ind_table table = { .context = context };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_CVLAN };
	/* A plain one the header makes by ibv_create_srq. */
	struct ibv_srq_init_attr_ex srq_attr = {
		.attr = { 8, 1, 0 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
	};
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = 3, .fd = -1 };
	struct ibv_qp_open_attr open_attr = { .comp_mask = 0 };
	struct ibv_wq_init_attr wq_attr = { .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq_attr wq_change = { .attr_mask = 0 };
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = 0 };
	struct ibv_flow_attr flow_attr = { .comp_mask = 0 };
	struct ibv_flow_action_esp_attr action_attr = { .comp_mask = 0 };
	struct ibv_counters_init_attr counters_attr = { .comp_mask = 0 };
	struct ibv_counter_attach_attr attach_attr = { .index = 0 };
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1 };
	struct ibv_ops_wr operation = { .wr_id = 0 }, *bad_operation;
	uint64_t number;

	if (!pd || !cq || !qp)
		return 1;
	POINTER(ibv_create_cq_ex, ibv_create_cq_ex(context, &cq_attr));
	POINTER(ibv_create_srq_ex, ibv_create_srq_ex(context, &srq_attr));
	STATUS(ibv_post_srq_ops, ibv_post_srq_ops(&srq, &operation, &bad_operation));
	POINTER(ibv_open_xrcd, ibv_open_xrcd(context, &xrcd_attr));
	STATUS(ibv_close_xrcd, ibv_close_xrcd(&xrcd));
	POINTER(ibv_open_qp, ibv_open_qp(context, &open_attr));
	STATUS(ibv_modify_qp_rate_limit, ibv_modify_qp_rate_limit(qp, &rate));
	POINTER(ibv_alloc_null_mr, ibv_alloc_null_mr(pd));
	POINTER(ibv_create_wq, ibv_create_wq(context, &wq_attr));
	STATUS(ibv_modify_wq, ibv_modify_wq(&wq, &wq_change));
	STATUS(ibv_destroy_wq, ibv_destroy_wq(&wq));
	POINTER(ibv_create_rwq_ind_table, ibv_create_rwq_ind_table(context, &table_attr));
	STATUS(ibv_destroy_rwq_ind_table, ibv_destroy_rwq_ind_table(&table));
	POINTER(ibv_create_flow, ibv_create_flow(qp, &flow_attr));
	STATUS(ibv_destroy_flow, ibv_destroy_flow(&flow));
	POINTER(ibv_create_flow_action_esp, ibv_create_flow_action_esp(context, &action_attr));
	STATUS(ibv_modify_flow_action_esp, ibv_modify_flow_action_esp(&action, &action_attr));
	STATUS(ibv_destroy_flow_action, ibv_destroy_flow_action(&action));
	POINTER(ibv_create_counters, ibv_create_counters(context, &counters_attr));
	STATUS(ibv_destroy_counters, ibv_destroy_counters(&counters));
	STATUS(ibv_read_counters, ibv_read_counters(&counters, &number, 1, 0));
	STATUS(ibv_attach_counters_point_flow, ibv_attach_counters_point_flow(&counters, &attach_attr, &flow));
	return 0;
}
