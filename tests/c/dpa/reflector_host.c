/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host side of the reflector: queues, steering by destination address, and what is refused. Prints what the device has
 * counted once as many frames as asked for have gone back. By the interface of two releases: 2.7 and 26.4.
 */
#ifdef RELEASE_26_4
#include <libflexio/flexio_ver.h>
#define FLEXIO_VER_USED FLEXIO_VER(26, 4, 0)
#endif
#include "host.h"
#include "reflector.h"

extern struct flexio_app *reflector;
extern flexio_func_t reflector_init, reflector_add, reflector_task, reflector_event, reflector_reflected,
	reflector_noticed;

#define LOG_BLOCK 6

static struct host host;

/* The application and a stream of messages, as programs of a release ask for them. */
static struct flexio_app *application(struct ibv_context *context)
{
#ifdef RELEASE_26_4
	struct flexio_app_select_attr attr = { 0 };
	struct flexio_app *app;

	EXPECT(flexio_version_set(FLEXIO_VER(26, 5, 0)) == FLEXIO_STATUS_FAILED);
	OK(flexio_version_set(FLEXIO_VER_USED));
	EXPECT(flexio_version_set(FLEXIO_VER(25, 10, 0)) == FLEXIO_STATUS_FAILED);
	attr.app_name = "reflector";
	attr.hw_model_id = FLEXIO_HW_MODEL_DEF;
	EXPECT(flexio_app_get(&attr, &app) == FLEXIO_STATUS_FAILED);
	attr.ibv_ctx = context;
	OK(flexio_app_get(&attr, &app));
	EXPECT(app == reflector);
	attr.app_name = "deflector";
	EXPECT(flexio_app_get(&attr, &app) == FLEXIO_STATUS_FAILED);
	return app;
#else
	(void)context;
	return reflector;
#endif
}

static struct flexio_msg_stream *messages(void)
{
#ifdef RELEASE_26_4
	struct flexio_msg_stream_attr attr = { 0 };

	attr.sync_mode = FLEXIO_MSG_DEV_SYNC_MODE_SYNC;
	attr.transport_mode = FLEXIO_MSG_TRANSPORT_QP_RC;
#else
	flexio_msg_stream_attr_t attr = { 0 };

	attr.sync_mode = FLEXIO_LOG_DEV_SYNC_MODE_SYNC;
#endif
	struct flexio_msg_stream *stream;

	attr.data_bsize = 4 << FLEXIO_MSG_DEV_LOG_DATA_CHUNK_BSIZE;
	attr.level = FLEXIO_MSG_DEV_INFO;
	OK(flexio_msg_stream_create(host.process, &attr, stdout, NULL, &stream));
	return stream;
}

/* Destination address: bytes 8 to 13 of the match. */
static struct mlx5dv_flow_match_parameters *match(const uint8_t *mac)
{
	struct mlx5dv_flow_match_parameters *match = calloc(1, sizeof *match + 64);

	match->match_sz = 64;
	memcpy((uint8_t *)match->match_buf + 8, mac, 6);
	return match;
}

int main(int argc, char **argv)
{
	static const uint8_t ones[6] = { 255, 255, 255, 255, 255, 255 }, mac[6] = { 2, 0, 0, 0, 0, 0x77 };
	uint32_t wanted = argc > 1 ? (uint32_t)atoi(argv[1]) : 100;
	struct flexio_event_handler_attr handler_attr = { 0 };
	struct mlx5dv_dr_action *to_queue, *to_table, *to_port, *drop, *none[1];
	struct mlx5dv_dr_domain *receive, *fdb;
	struct mlx5dv_dr_matcher *matcher, *sends;
	struct mlx5dv_dr_table *table, *next, *root;
	struct mlx5dv_dr_rule *rule, *leave;
	struct mlx5dv_dr_matcher_layout layout = { 0 };
	struct flexio_wq_attr wq = { 0 };
	struct flexio_event_handler *handler;
	struct flexio_cmdq_attr cmdq_attr = { .workers = 3, .batch_size = 1, .state = FLEXIO_CMDQ_STATE_PENDING };
	struct flexio_mkey *mkey;
	struct flexio_cq *rq_cq, *sq_cq;
	struct flexio_cmdq *cmdq;
	struct flexio_msg_stream *stream;
	struct flexio_rq *rq;
	struct flexio_sq *sq;
	struct reflector state = { 0 };
	uint64_t answer, daddr, counter;

	host = open_first();
	OK(flexio_process_create(host.context, application(host.context), NULL, &host.process));
	stream = messages();
	OK(flexio_process_call(host.process, &reflector_add, &answer, 300, -5, (void *)16, 1UL << 40));
	EXPECT(answer == (300 & 0xFF) - 5 + 16 + (1UL << 40));

	/* Ten tasks, three workers. */
	counter = device_zeros(&host, 8);
	OK(flexio_cmdq_create(host.process, &cmdq_attr, &cmdq));
	for (int i = 0; i < 10; i++)
		OK(flexio_cmdq_task_add(cmdq, &reflector_task, counter));
	EXPECT(!flexio_cmdq_is_empty(cmdq));
	OK(flexio_cmdq_state_running(cmdq));
	for (int i = 0; i < 10000 && !flexio_cmdq_is_empty(cmdq); i++)
		usleep(100);
	EXPECT(flexio_cmdq_is_empty(cmdq));
	OK(flexio_cmdq_destroy(cmdq));

	handler_attr.host_stub_func = &reflector_event;
	handler_attr.affinity.type = FLEXIO_AFFINITY_STRICT; /* Unit 0. */
	OK(flexio_event_handler_create(host.process, &handler_attr, &handler));
	rq_cq = device_cq(&host, flexio_event_handler_get_thread(handler), LOG_DEPTH, &state.rq_cq_ring, &state.rq_cq_dbr);
	/* Completions of sends start the same handler. */
	sq_cq = device_cq(&host, flexio_event_handler_get_thread(handler), LOG_DEPTH, &state.sq_cq_ring, &state.sq_cq_dbr);
	state.rq_cqn = flexio_cq_get_cq_num(rq_cq);
	state.sq_cqn = flexio_cq_get_cq_num(sq_cq);
	state.buffers = device_zeros(&host, DEPTH * FRAME_BYTES);
	state.rq_ring = device_zeros(&host, DEPTH * 16);
	state.rq_dbr = device_zeros(&host, 8);
	state.sq_ring = device_zeros(&host, (size_t)DEPTH << LOG_BLOCK);
	mkey = device_mkey(&host, state.buffers, DEPTH * FRAME_BYTES);
	state.lkey = flexio_mkey_get_id(mkey);

	wq.log_wq_depth = LOG_DEPTH;
	wq.uar_id = flexio_uar_get_id(flexio_process_get_uar(host.process));
	wq.pd = host.pd;
	wq.wq_ring_qmem.daddr = state.rq_ring;
	wq.wq_dbr_qmem.daddr = state.rq_dbr;
	wq.log_wq_stride = 3;
	EXPECT(flexio_rq_create(host.process, NULL, state.rq_cqn, &wq, &rq) != FLEXIO_STATUS_SUCCESS);
	wq.log_wq_stride = 0;
	OK(flexio_rq_create(host.process, NULL, state.rq_cqn, &wq, &rq));
	wq.wq_ring_qmem.daddr = state.sq_ring;
	OK(flexio_sq_create(host.process, NULL, flexio_cq_get_cq_num(sq_cq), &wq, &sq));
	state.sqn = flexio_sq_get_wq_num(sq);
	daddr = device_copy(&host, &state, sizeof state);
	OK(flexio_process_call(host.process, &reflector_init, &answer, daddr));
	OK(flexio_event_handler_run(handler, 0));

	/* What is sent: one table leads to another, and that to the wire. */
	fdb = mlx5dv_dr_domain_create(host.context, MLX5DV_DR_DOMAIN_TYPE_FDB);
	root = mlx5dv_dr_table_create(fdb, 0);
	next = mlx5dv_dr_table_create(fdb, 1);
	sends = mlx5dv_dr_matcher_create(root, 0, 0, NULL);
	to_table = mlx5dv_dr_action_create_dest_table(next);
	leave = mlx5dv_dr_rule_create(sends, NULL, 1, &to_table);
	EXPECT(leave);
	EXPECT(mlx5dv_dr_table_destroy(next) != 0);
	EXPECT(!mlx5dv_dr_action_create_dest_vport(fdb, 7));
	to_port = mlx5dv_dr_action_create_dest_vport(fdb, 0xFFFF);
	EXPECT(to_port && !mlx5dv_dr_action_create_dest_table(root));
	EXPECT(!mlx5dv_dr_action_create_dest_ib_port(fdb, 2));
	EXPECT(mlx5dv_dr_matcher_set_layout(sends, &layout) == 0 && mlx5dv_dr_domain_sync(fdb, 1) == 0);

	/* What is received: frames to our address, and no others. */
	receive = mlx5dv_dr_domain_create(host.context, MLX5DV_DR_DOMAIN_TYPE_NIC_RX);
	table = mlx5dv_dr_table_create(receive, 0);
	matcher = mlx5dv_dr_matcher_create(table, 0, 1, match(ones));
	to_queue = mlx5dv_dr_action_create_dest_devx_tir(flexio_rq_get_tir(rq));
	drop = mlx5dv_dr_action_create_drop();
	EXPECT(matcher && to_queue && drop);
	none[0] = NULL;
	EXPECT(!mlx5dv_dr_rule_create(matcher, match(mac), 1, none));
	EXPECT(!mlx5dv_dr_rule_create(matcher, match(mac), 1, &to_port));
	mlx5dv_dr_domain_allow_duplicate_rules(receive, 0);
	rule = mlx5dv_dr_rule_create(matcher, match(mac), 1, &to_queue);
	EXPECT(rule && !mlx5dv_dr_rule_create(matcher, match(mac), 1, &drop));
	EXPECT(flexio_rq_destroy(rq) != FLEXIO_STATUS_SUCCESS);

	for (int i = 0; i < 30000; i++) {
		OK(flexio_process_call(host.process, &reflector_reflected, &answer));
		if (answer >= wanted)
			break;
		usleep(1000);
	}
	EXPECT(answer == wanted);
	OK(flexio_process_call(host.process, &reflector_noticed, &answer));
	printf("%u frames: %u with a VLAN tag, %u with a wrong checksum\n", wanted, (uint32_t)answer,
	       (uint32_t)(answer >> 32));
	EXPECT(mlx5dv_dr_rule_destroy(rule) == 0 && mlx5dv_dr_action_destroy(to_queue) == 0);
	EXPECT(mlx5dv_dr_matcher_destroy(matcher) == 0 && mlx5dv_dr_table_destroy(table) == 0);
	EXPECT(mlx5dv_dr_domain_destroy(receive) == 0 && mlx5dv_dr_action_destroy(drop) == 0);
	EXPECT(mlx5dv_dr_rule_destroy(leave) == 0 && mlx5dv_dr_action_destroy(to_table) == 0);
	EXPECT(mlx5dv_dr_action_destroy(to_port) == 0 && mlx5dv_dr_matcher_destroy(sends) == 0);
	EXPECT(mlx5dv_dr_table_destroy(next) == 0 && mlx5dv_dr_table_destroy(root) == 0);
	EXPECT(mlx5dv_dr_domain_destroy(fdb) == 0);
	EXPECT(flexio_rq_get_wq_num(rq) != state.sqn);
	OK(flexio_rq_set_err_state(rq));
	OK(flexio_rq_destroy(rq));
	OK(flexio_sq_destroy(sq));
	OK(flexio_msg_stream_destroy(stream));
	puts("the reflector ends well");
	return EXIT_SUCCESS;
}
