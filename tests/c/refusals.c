/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program does wrong is refused, and what the emulator does not have says so: null and destroyed handles, objects
 * destroyed before those that need them, unsupported calls. Argument: the image `pingpong`.
 */
#include <libflexio/flexio.h>
#include <flexcast_emu.h>
#include "support.h"

/* The reasons are on stderr; what was refused is the golden output. */
#define REFUSED(call)                                    \
	do {                                             \
		CHECK((call) == FLEXIO_STATUS_FAILED);   \
		printf("refused: %s\n", #call);          \
	} while (0)

static void null_handles(void)
{
	struct flexio_app_attr app_attr = { 0 };
	struct flexio_heap_mem_info info;
	struct flexio_process *process = NULL;
	struct flexio_app *app = NULL;
	flexio_func_t *func = NULL;
	uint64_t value = 0;

	REFUSED(flexio_app_create(NULL, &app));
	REFUSED(flexio_app_create(&app_attr, &app));
	REFUSED(flexio_app_destroy(NULL));
	REFUSED(flexio_app_list_free(NULL));
	REFUSED(flexio_app_get_elf(NULL, &value, sizeof(value)));
	REFUSED(flexio_func_register(NULL, "bring_up", &func));
	REFUSED(flexio_func_pup_register(NULL, "bring_up", "bring_up__unpack", bring_up, 8, pack_u64));
	REFUSED(flexio_process_create(NULL, NULL, NULL, &process));
	REFUSED(flexio_process_call(NULL, bring_up, &value, UINT64_C(0)));
	REFUSED(flexio_process_error_handler_set(NULL, bring_up));
	REFUSED(flexio_process_mem_info_get(NULL, &info));
	REFUSED(flexio_coredump_create(NULL, NULL));
	REFUSED(flexio_crash_data(NULL, NULL));
	value = 1;
	REFUSED(flexio_buf_dev_alloc(NULL, 64, &value));
	CHECK(value == 0);
	REFUSED(flexio_buf_dev_free(NULL, 0));
	REFUSED(flexio_host2dev_memcpy(NULL, &value, sizeof(value), 0));
	REFUSED(flexio_buf_dev_memset(NULL, 0, 8, 0));
	REFUSED(flexio_copy_from_host(NULL, &value, sizeof(value), &value));
	REFUSED(flexio_device_mkey_create(NULL, NULL, NULL));
	REFUSED(flexio_cq_create(NULL, NULL, NULL, NULL));
	REFUSED(flexio_cq_destroy(NULL));
	REFUSED(flexio_cq_modify_moderation(NULL, 0, 0, 0));
	REFUSED(flexio_qp_create(NULL, NULL, NULL, NULL));
	REFUSED(flexio_qp_modify(NULL, NULL, NULL));
	REFUSED(flexio_qp_destroy(NULL));
	REFUSED(flexio_event_handler_create(NULL, NULL, NULL));
	REFUSED(flexio_event_handler_run(NULL, 0));
	REFUSED(flexio_event_handler_destroy(NULL));
	REFUSED(flexio_window_create(NULL, NULL, NULL));
	REFUSED(flexio_window_destroy(NULL));
	REFUSED(flexio_outbox_create(NULL, NULL, NULL));
	REFUSED(flexio_outbox_destroy(NULL));
	REFUSED(flexio_uar_create(NULL, NULL));
	REFUSED(flexio_uar_destroy(NULL));
	REFUSED(flexio_msg_stream_create(NULL, NULL, stderr, NULL, NULL));
	REFUSED(flexio_msg_stream_destroy(NULL));
	REFUSED(flexio_msg_stream_flush(NULL));
	REFUSED(flexio_msg_stream_level_set(NULL, FLEXIO_MSG_DEV_INFO));
	REFUSED(flexio_log_dev_init(NULL, NULL, stderr, NULL));
	REFUSED(flexio_log_dev_flush(NULL));
	REFUSED(flexio_log_dev_destroy(NULL));

	CHECK(!flexio_app_get_name(NULL) && flexio_app_get_elf_size(NULL) == 0);
	CHECK(!flexio_process_get_uar(NULL) && !flexio_process_get_pd(NULL));
	CHECK(flexio_process_get_dumem_id(NULL) == UINT32_MAX && flexio_process_udbg_token_get(NULL) == 0);
	/* No object is one that these take. */
	CHECK(flexio_process_destroy(NULL) == FLEXIO_STATUS_SUCCESS && flexio_device_mkey_destroy(NULL) == FLEXIO_STATUS_SUCCESS);
	CHECK(flexio_err_handler_fd(NULL) == -1 && flexio_err_status_get(NULL) == FLEXIO_DEV_NO_ERROR);
	CHECK(flexio_mkey_get_id(NULL) == UINT32_MAX && flexio_cq_get_cq_num(NULL) == UINT32_MAX);
	CHECK(flexio_qp_get_qp_num(NULL) == UINT32_MAX && flexio_qp_state_get(NULL) == FLEXIO_QP_STATE_ERR);
	CHECK(!flexio_event_handler_get_thread(NULL) && flexio_event_handler_get_id(NULL) == UINT32_MAX);
	CHECK(flexio_event_handler_get_obj_id(NULL) == UINT32_MAX && flexio_window_get_id(NULL) == UINT32_MAX);
	CHECK(flexio_outbox_get_id(NULL) == UINT32_MAX && !flexio_outbox_get_uar(NULL));
	CHECK(flexio_uar_get_id(NULL) == UINT32_MAX && flexio_uar_get_extended_id(NULL) == UINT32_MAX);
	CHECK(flexio_msg_stream_get_id(NULL) == -1);
	printf("getters of null handles return their error values\n");
}

static void unsupported(struct flexio_app *app, struct flexio_process *process, struct ibv_context *context)
{
	struct flexio_wq_attr wq_attr = { .log_wq_depth = 4 };
	struct flexio_cmdq_attr cmdq_attr = { .workers = 0, .batch_size = 1 };
	struct flexio_process_attr pcc = { .en_pcc = 1 };
	struct flexio_event_handler_attr group = { .affinity = { FLEXIO_AFFINITY_GROUP, 1 } };
	struct flexio_qp_attr datagram = { .transport_type = FLEXIO_QPC_ST_UD };
	struct flexio_app_select_attr nameless = { 0 };
	struct flexio_event_handler *handler = NULL;
	struct flexio_process *other = NULL;
	struct flexio_app *found = NULL;
	struct flexio_cmdq *cmdq = NULL;
	struct flexio_rmp *rmp = NULL;
	struct flexio_resource *resource = NULL;
	struct flexio_uar *uar = NULL;
	struct flexio_rq *rq = NULL;
	struct flexio_sq *sq = NULL;
	struct flexio_qp *qp = NULL;

	OK(flexio_func_register(app, "pong", &group.host_stub_func));
	REFUSED(flexio_rq_create(process, NULL, 0, &wq_attr, &rq));
	REFUSED(flexio_sq_create(process, NULL, 0, &wq_attr, &sq));
	REFUSED(flexio_rmp_create(process, NULL, &wq_attr, &rmp));
	REFUSED(flexio_rq_set_err_state(rq));
	REFUSED(flexio_rq_destroy(rq));
	REFUSED(flexio_sq_destroy(sq));
	REFUSED(flexio_rmp_destroy(rmp));
	REFUSED(flexio_cmdq_create(process, &cmdq_attr, &cmdq));
	REFUSED(flexio_cmdq_task_add(cmdq, group.host_stub_func, 0));
	REFUSED(flexio_cmdq_state_running(cmdq));
	REFUSED(flexio_cmdq_destroy(cmdq));
	REFUSED(flexio_coredump_create(process, "no/such/folder/core"));
	REFUSED(flexio_process_error_handler_set(process, group.host_stub_func));
	REFUSED(flexio_uar_extend(flexio_process_get_uar(process), context, &uar));
	REFUSED(flexio_resources_create("app", NULL, 0, &resource));
	REFUSED(flexio_resources_destroy(resource));
	CHECK(!flexio_resources_get_eugs_num(resource) && !flexio_resources_get_eus_num(resource));
	CHECK(!flexio_resources_get_eus(resource));
	REFUSED(flexio_version_set(FLEXIO_VER(24, 4, 0)));
	REFUSED(flexio_app_get(&nameless, &found));
	REFUSED(flexio_process_create(context, app, &pcc, &other));
	REFUSED(flexio_event_handler_create(process, &group, &handler));
	REFUSED(flexio_qp_create(process, NULL, &datagram, &qp));
	CHECK(flexio_rq_get_wq_num(rq) == UINT32_MAX && flexio_sq_get_wq_num(sq) == UINT32_MAX);
	CHECK(flexio_rmp_get_wq_num(rmp) == UINT32_MAX && !flexio_rq_get_tir(rq) && flexio_cmdq_is_empty(cmdq) == 1);
	CHECK(!rq && !sq && !rmp && !cmdq && !uar && !other && !handler && !qp);
}

/* Attributes and functions that do not fit, and addresses outside. */
static void wrong_arguments(struct flexio_app *app, struct flexio_process *process, struct ibv_pd *pd)
{
	struct flexio_heap_mem_info info;
	struct flexio_mkey_attr mkey_attr = { .pd = pd, .len = 64, .access = IBV_ACCESS_LOCAL_WRITE };
	struct flexio_cq_attr cq_attr = { .log_cq_depth = 40, .element_type = FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ };
	struct flexio_event_handler_attr handler_attr = { .affinity = { FLEXIO_AFFINITY_STRICT, 999 } };
	struct flexio_event_handler *handler = NULL;
	struct flexio_mkey *mkey = NULL;
	flexio_uintptr_t daddr = 0;
	struct flexio_cq *cq = NULL;
	uint64_t value = 0;

	REFUSED(flexio_func_pup_register(app, "no_such_rpc", "bring_up__unpack", bring_up, 8, pack_u64));
	REFUSED(flexio_func_pup_register(app, "bring_up", "bring_up__unpack", NULL, 8, pack_u64));
	REFUSED(flexio_func_pup_register(app, "bring_up", "bring_up__unpack", bring_up, 8, NULL));
	REFUSED(flexio_process_call(process, bring_up, &value, UINT64_C(0)));
	OK(flexio_func_pup_register(app, "bring_up", "bring_up__unpack", bring_up, 8, pack_u64));
	REFUSED(flexio_func_pup_register(app, "echo", "echo__unpack", bring_up, 8, pack_u64));
	REFUSED(flexio_process_call(process, bring_up, NULL, UINT64_C(0)));
	REFUSED(flexio_func_register(app, "no_such_handler", &handler_attr.host_stub_func));
	OK(flexio_func_register(app, "pong", &handler_attr.host_stub_func));
	REFUSED(flexio_process_call(process, handler_attr.host_stub_func, &value, UINT64_C(0)));
	REFUSED(flexio_event_handler_create(process, &handler_attr, &handler));

	OK(flexio_process_mem_info_get(process, &info));
	REFUSED(flexio_buf_dev_alloc(process, info.size + 1, &daddr));
	OK(flexio_buf_dev_alloc(process, 64, &daddr));
	REFUSED(flexio_host2dev_memcpy(process, NULL, 8, daddr));
	REFUSED(flexio_host2dev_memcpy(process, &value, sizeof(value), info.base_addr + info.size));
	REFUSED(flexio_buf_dev_memset(process, 0, 8, 0));
	REFUSED(flexio_buf_dev_free(process, daddr + 8));
	mkey_attr.daddr = info.base_addr + info.size - 32;
	REFUSED(flexio_device_mkey_create(process, &mkey_attr, &mkey));
	REFUSED(flexio_cq_create(process, NULL, &cq_attr, &cq));
	OK(flexio_buf_dev_free(process, daddr));
	REFUSED(flexio_buf_dev_free(process, daddr));
	OK(flexio_buf_dev_free(process, 0));
}

static void destroyed_and_busy(struct ibv_context *context, struct flexio_app *app, struct flexio_process *process,
			       struct ibv_pd *pd)
{
	struct flexio_outbox_attr attr = { .en_pcc = 0 };
	struct flexio_outbox *outbox = NULL;
	struct flexio_window *window = NULL;

	OK(flexio_window_create(process, pd, &window));
	OK(flexio_outbox_create(process, &attr, &outbox));
	REFUSED(flexio_process_destroy(process));
	REFUSED(flexio_app_destroy(app));
	REFUSED(flexio_window_destroy((struct flexio_window *)outbox));
	OK(flexio_window_destroy(window));
	REFUSED(flexio_window_destroy(window));
	CHECK(flexio_window_get_id(window) == UINT32_MAX);
	OK(flexio_outbox_destroy(outbox));
	REFUSED(flexio_outbox_destroy(outbox));
	REFUSED(flexio_uar_destroy(flexio_process_get_uar(process)));
	OK(flexio_process_destroy(process));
	REFUSED(flexio_process_destroy(process));
	REFUSED(flexio_window_create(process, pd, &window));
	OK(flexio_app_destroy(app));
	REFUSED(flexio_app_destroy(app));
	REFUSED(flexio_process_create(context, app, NULL, &process));
}

int main(int argc, char **argv)
{
	char name[] = "refusals";
	struct flexio_process *process = NULL;
	struct ibv_context *context;
	struct flexio_app *app;
	struct ibv_pd *pd;

	CHECK(argc == 2);
	null_handles();
	context = open_card(0);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	app = create_app(name, argv[1]);
	OK(flexio_process_create(context, app, NULL, &process));
	unsupported(app, process, context);
	wrong_arguments(app, process, pd);
	CHECK(flexio_err_status_get(process) == FLEXIO_DEV_NO_ERROR);
	destroyed_and_busy(context, app, process, pd);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	CHECK(ibv_close_device(context) != 0);
	/* Nothing has run, so nothing is due and no time has passed. */
	CHECK(!flexcast_emu_relax() && flexcast_emu_now_ps() == 0 && !flexcast_emu_is_bridged());
	printf("the emulated machine is idle\n");
	return 0;
}
