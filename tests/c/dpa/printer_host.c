/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the printer: frames to one UDP port, by the interface of release 26.4. Argument: how many. */
#include <libflexio/flexio_ver.h>
#define FLEXIO_VER_USED FLEXIO_VER(26, 4, 0)
#include "host.h"
#include "printer.h"

extern struct flexio_app *printer;
extern flexio_func_t printer_init, printer_printed, printer_event;

/* Offsets in the outer headers of a match: protocol of IP, destination port of UDP. */
enum { IP_PROTOCOL = 16, UDP_DPORT = 30, MATCH_BYTES = 64 };

static struct mlx5dv_flow_match_parameters *match(uint8_t protocol, uint16_t port)
{
	struct mlx5dv_flow_match_parameters *match = calloc(1, sizeof *match + MATCH_BYTES);
	uint8_t *bytes = (uint8_t *)match->match_buf;

	match->match_sz = MATCH_BYTES;
	bytes[IP_PROTOCOL] = protocol;
	bytes[UDP_DPORT] = (uint8_t)(port >> 8);
	bytes[UDP_DPORT + 1] = (uint8_t)port;
	return match;
}

int main(int argc, char **argv)
{
	uint64_t wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 8, answer;
	struct flexio_event_handler_attr handler_attr = { 0 };
	struct flexio_msg_stream_attr stream_attr = { 0 };
	struct flexio_event_handler *handler;
	struct flexio_msg_stream *stream;
	struct mlx5dv_dr_action *to_queue;
	struct mlx5dv_dr_domain *domain;
	struct mlx5dv_dr_matcher *matcher;
	struct mlx5dv_dr_table *table;
	struct mlx5dv_dr_rule *rule;
	struct flexio_wq_attr attr = { 0 };
	struct printer state = { 0 };
	struct flexio_mkey *mkey;
	struct flexio_cq *cq;
	struct flexio_rq *rq;
	struct host host;

	OK(flexio_version_set(FLEXIO_VER_USED));
	host = start(printer);
	stream_attr.data_bsize = 64 << FLEXIO_MSG_DEV_LOG_DATA_CHUNK_BSIZE;
	stream_attr.sync_mode = FLEXIO_MSG_DEV_SYNC_MODE_SYNC;
	stream_attr.level = FLEXIO_MSG_DEV_INFO;
	OK(flexio_msg_stream_create(host.process, &stream_attr, stdout, NULL, &stream));
	handler_attr.host_stub_func = &printer_event;
	OK(flexio_event_handler_create(host.process, &handler_attr, &handler));
	cq = device_cq(&host, flexio_event_handler_get_thread(handler), LOG_DEPTH, &state.cq_ring, &state.cq_dbr);
	state.cqn = flexio_cq_get_cq_num(cq);
	state.rq_ring = device_zeros(&host, DEPTH * 16);
	state.rq_dbr = device_zeros(&host, 8);
	state.frames = device_zeros(&host, DEPTH * FRAME_BYTES);
	mkey = device_mkey(&host, state.frames, DEPTH * FRAME_BYTES);
	state.lkey = flexio_mkey_get_id(mkey);
	attr.log_wq_depth = LOG_DEPTH;
	attr.pd = host.pd;
	attr.wq_ring_qmem.daddr = state.rq_ring;
	attr.wq_dbr_qmem.daddr = state.rq_dbr;
	OK(flexio_rq_create(host.process, NULL, state.cqn, &attr, &rq));
	OK(flexio_process_call(host.process, &printer_init, &answer, device_copy(&host, &state, sizeof state)));
	OK(flexio_event_handler_run(handler, 0));

	domain = mlx5dv_dr_domain_create(host.context, MLX5DV_DR_DOMAIN_TYPE_NIC_RX);
	table = mlx5dv_dr_table_create(domain, 0);
	matcher = mlx5dv_dr_matcher_create(table, 0, 1, match(0xFF, 0xFFFF));
	to_queue = mlx5dv_dr_action_create_dest_devx_tir(flexio_rq_get_tir(rq));
	EXPECT(matcher && to_queue);
	rule = mlx5dv_dr_rule_create(matcher, match(17, 4001), 1, &to_queue);
	EXPECT(rule);
	answer = 0;
	for (int i = 0; i < 30000 && answer < wanted; i++) {
		usleep(1000);
		OK(flexio_process_call(host.process, &printer_printed, &answer));
	}
	EXPECT(answer == wanted);
	OK(flexio_msg_stream_flush(stream));
	EXPECT(mlx5dv_dr_rule_destroy(rule) == 0 && mlx5dv_dr_action_destroy(to_queue) == 0);
	EXPECT(mlx5dv_dr_matcher_destroy(matcher) == 0 && mlx5dv_dr_table_destroy(table) == 0);
	EXPECT(mlx5dv_dr_domain_destroy(domain) == 0);
	OK(flexio_rq_destroy(rq));
	OK(flexio_cq_destroy(cq));
	OK(flexio_event_handler_destroy(handler));
	OK(flexio_device_mkey_destroy(mkey));
	OK(flexio_msg_stream_destroy(stream));
	stop(&host);
	puts("the printer ends well");
	return EXIT_SUCCESS;
}
