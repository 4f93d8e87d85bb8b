/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection manager, as programs use it.
 *
 *   connections serve PORT         endpoints whose calls wait: takes one request, answers one message, waits for the end
 *   connections ask ADDRESS PORT   the other side
 *   connections alone              both sides on the two cards of one machine, with event channels; and what is refused
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* The call fails with this errno. */
#define REFUSED(call, expected)                                                                                        \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == (expected));                                                            \
	} while (0)

#define TEXT_BYTES 64

static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr attr = { 0 };

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.sq_sig_all = 1;
	attr.qp_type = IBV_QPT_RC;
	return attr;
}

/* ---- calls that wait */

static void serve(const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = queues();
	struct rdma_conn_param param = { .private_data = "welcome", .private_data_len = 8 };
	struct rdma_cm_id *listener, *id;
	char text[TEXT_BYTES] = "";
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(rdma_getaddrinfo(NULL, port, &hints, &found) == 0);
	CHECK(rdma_create_ep(&listener, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listener, 1) == 0);
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->event->listen_id == listener);
	CHECK(strcmp(id->event->param.conn.private_data, "hello") == 0 && id->event->param.conn.private_data_len == 56);
	mr = rdma_reg_msgs(id, text, sizeof text);
	CHECK(mr && rdma_post_recv(id, NULL, text, sizeof text, mr) == 0);
	CHECK(rdma_accept(id, &param) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(text, "a question") == 0);
	strcpy(text, "an answer");
	CHECK(rdma_post_send(id, NULL, text, sizeof text, mr, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	/* The other side disconnects. */
	CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static void ask(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = queues();
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6, .retry_count = 7,
					 .rnr_retry_count = 7 };
	char text[TEXT_BYTES] = "a question", answer[TEXT_BYTES] = "";
	struct ibv_mr *mr, *answer_mr;
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	CHECK(rdma_getaddrinfo(address, port, &hints, &found) == 0);
	CHECK(rdma_create_ep(&id, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(id->qp && id->pd && id->verbs && ntohs(rdma_get_dst_port(id)) == atoi(port) && rdma_get_src_port(id));
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu == 5);
	mr = rdma_reg_msgs(id, text, sizeof text);
	answer_mr = rdma_reg_msgs(id, answer, sizeof answer);
	CHECK(mr && answer_mr && rdma_post_recv(id, NULL, answer, sizeof answer, answer_mr) == 0);
	CHECK(rdma_connect(id, &param) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED && id->event->param.conn.private_data_len == 196);
	CHECK(strcmp(id->event->param.conn.private_data, "welcome") == 0);
	CHECK(rdma_post_send(id, NULL, text, sizeof text, mr, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(answer, "an answer") == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0 && rdma_dereg_mr(answer_mr) == 0);
	rdma_destroy_ep(id);
}

/* ---- event channels, on two cards of one machine */

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK(inet_pton(AF_INET, address, &in.sin_addr) == 1);
	return in;
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	CHECK(poll(&readable, 1, 20000) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != expected) {
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(expected));
		exit(1);
	}
	return event;
}

/* Takes and acknowledges an event; gives its status. */
static int came(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next(channel, expected);
	int status = event->status;

	CHECK(rdma_ack_cm_event(event) == 0);
	return status;
}

static struct rdma_cm_id *asking(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in to = at("198.18.0.2", port);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	return id;
}

static struct rdma_cm_id *listening(struct rdma_event_channel *channel, int port, int backlog)
{
	struct sockaddr_in here = at("198.18.0.2", port);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, &here, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&here) == 0);
	CHECK(rdma_listen(id, backlog) == 0);
	return id;
}

static void *acknowledge_later(void *event)
{
	usleep(50000);
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

/* A connection with queue pairs, from asking to the last event. */
static void connection(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = { .responder_resources = 2, .initiator_depth = 3, .retry_count = 7 };
	struct rdma_cm_id *listener = listening(channel, 7471, 0), *id = asking(channel, 7471), *asked;
	struct ibv_qp_init_attr attr = queues(), more = queues();
	struct rdma_cm_event *event;
	struct ibv_qp_attr state;
	struct ibv_qp_init_attr made;
	pthread_t thread;

	CHECK(rdma_create_qp(id, NULL, &attr) == 0 && rdma_create_qp(id, NULL, &attr) == -1);
	CHECK(rdma_connect(id, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(asked->context == listener->context && event->listen_id == listener && asked->verbs != id->verbs);
	CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
	CHECK(event->param.conn.qp_num == id->qp->qp_num);
	CHECK(((struct sockaddr_in *)rdma_get_peer_addr(asked))->sin_addr.s_addr == at("198.18.0.1", 0).sin_addr.s_addr);
	CHECK(rdma_get_dst_port(asked) == rdma_get_src_port(id) && rdma_get_src_port(asked) == htons(7471));
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_create_qp(asked, NULL, &more) == 0);
	CHECK(rdma_accept(asked, NULL) == 0);
	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == asked);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(ibv_query_qp(asked->qp, &state, IBV_QP_STATE, &made) == 0 && state.qp_state == IBV_QPS_RTS);
	CHECK(state.max_rd_atomic == 2 && state.max_dest_rd_atomic == 3 && state.retry_cnt == 7);
	REFUSED(rdma_connect(id, &param), EINVAL);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
	event = next(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(asked) == 0);
	rdma_destroy_qp(id);
	rdma_destroy_qp(asked);
	/* Waits for the thread. */
	CHECK(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
	CHECK(rdma_destroy_id(event->id) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(rdma_destroy_id(event->id == id ? asked : id) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
}

/* Refusals with data, by a full backlog, and by nobody. */
static void refusals(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = { .qp_num = 5 };
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *listener, *first, *second, *asked;
	struct rdma_cm_event *event;

	first = asking(channel, 7472);
	CHECK(rdma_connect(first, &param) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_REJECTED) == 8);
	CHECK(rdma_destroy_id(first) == 0);

	listener = listening(channel, 7472, 1);
	first = asking(channel, 7472);
	second = asking(other, 7472);
	CHECK(rdma_connect(first, &param) == 0);
	/* There when the next one comes, and not taken. */
	CHECK(poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 20000) == 1);
	CHECK(rdma_connect(second, &param) == 0);
	CHECK(came(other, RDMA_CM_EVENT_REJECTED) == 3);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(asked, "not now", 8) == 0);
	REFUSED(rdma_accept(asked, &param), EINVAL);
	event = next(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == first && event->status == 28);
	CHECK(event->param.conn.private_data_len == 148 && strcmp(event->param.conn.private_data, "not now") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(first) == 0 && rdma_destroy_id(second) == 0 && rdma_destroy_id(asked) == 0);

	/* Requests that wait go with their listener. */
	first = asking(channel, 7472);
	CHECK(rdma_connect(first, &param) == 0);
	CHECK(poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 20000) == 1);
	CHECK(rdma_destroy_id(listener) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_REJECTED) == 28);
	CHECK(rdma_destroy_id(first) == 0);
	rdma_destroy_event_channel(other);
}

/* A program that makes its queue pairs by itself. */
static void own_queue_pair(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = { .retry_count = 5, .rnr_retry_count = 4 };
	struct rdma_cm_id *listener = listening(channel, 7473, 0), *id = asking(channel, 7473), *asked;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = queues();
	struct rdma_cm_event *event;
	struct ibv_qp *qp;
	uint8_t tos = 0x20, timeout = 20;
	int mask;

	init.qp_type = IBV_QPT_RC;
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(id->pd, &init);
	CHECK(cq && qp);
	param.qp_num = qp->qp_num;
	REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && ibv_modify_qp(qp, &attr, mask) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
	CHECK(rdma_connect(id, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	REFUSED(rdma_establish(asked), EINVAL);
	param.qp_num = 77;
	CHECK(rdma_accept(asked, &param) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_CONNECT_RESPONSE) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && attr.dest_qp_num == 77);
	CHECK(attr.ah_attr.grh.traffic_class == tos && ibv_modify_qp(qp, &attr, mask) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0 && attr.timeout == timeout && attr.retry_cnt == 5);
	CHECK(attr.rnr_retry == 4 && ibv_modify_qp(qp, &attr, mask) == 0);
	REFUSED(rdma_notify(asked, IBV_EVENT_SQ_DRAINED), EINVAL);
	CHECK(rdma_notify(asked, IBV_EVENT_COMM_EST) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(rdma_establish(id) == 0);
	/* An identifier that goes takes its connection with it. */
	CHECK(rdma_destroy_id(id) == 0);
	event = next(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == asked && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(asked) == 0 && rdma_destroy_id(listener) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

/* What is refused, each with a line on stderr. */
static void bad_input(struct rdma_event_channel *channel)
{
	struct sockaddr_in wild = at("10.9.8.7", 7000), port = at("0.0.0.0", 7474), group = at("239.1.2.3", 0);
	struct rdma_conn_param param = { .private_data = "", .private_data_len = 57 };
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id, *second, *asked, *listener;
	struct rdma_cm_event *event;
	char data[256] = "";
	int yes = 1, mask;

	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_IPOIB), EOPNOTSUPP);
	REFUSED(rdma_create_id(channel, &id, NULL, 3), EINVAL);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	REFUSED(rdma_listen(NULL, 0), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_resolve_route(id, 0), EINVAL);
	REFUSED(rdma_create_qp(id, NULL, &(struct ibv_qp_init_attr){ 0 }), EINVAL);
	REFUSED(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&wild), ENODEV);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 9, &yes, sizeof yes), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &yes, sizeof yes), EOPNOTSUPP);
	REFUSED(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL);

	/* Nobody has the address: that comes as an event, and the next one may be right. */
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&wild, 1000) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_ADDR_ERROR) == -EHOSTUNREACH);
	CHECK(rdma_destroy_id(id) == 0);

	/* Two on one port, unless both allow it. */
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&port) == 0);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&port), EINVAL);
	REFUSED(rdma_bind_addr(second, (struct sockaddr *)&port), EADDRINUSE);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&port) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&port) == 0);
	CHECK(rdma_listen(id, 0) == 0);
	REFUSED(rdma_listen(second, 0), EADDRINUSE);
	REFUSED(rdma_listen(id, 0), EINVAL);
	CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(id) == 0);

	/* Too much private data, in every message; identifiers that move from channel to channel. */
	listener = listening(channel, 7475, 0);
	id = asking(channel, 7475);
	param.private_data = data;
	REFUSED(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	CHECK(rdma_migrate_id(id, other) == 0 && id->channel == other);
	rdma_destroy_event_channel(other);
	CHECK(rdma_connect(id, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	param.private_data_len = 197;
	REFUSED(rdma_accept(asked, &param), EINVAL);
	REFUSED(rdma_reject(asked, data, 149), EINVAL);
	REFUSED(rdma_reject(asked, NULL, 1), EINVAL);
	param.responder_resources = 17;
	param.private_data_len = 196;
	REFUSED(rdma_accept(asked, &param), EINVAL);
	CHECK(rdma_reject(asked, data, 148) == 0);
	CHECK(came(other, RDMA_CM_EVENT_REJECTED) == 28);
	CHECK(rdma_destroy_id(asked) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
	REFUSED(rdma_destroy_id(id), EINVAL);
	REFUSED(rdma_ack_cm_event(event), EINVAL);
	CHECK(fcntl(other->fd, F_SETFL, O_NONBLOCK) == 0);
	REFUSED(rdma_get_cm_event(other, &event), EAGAIN);
	rdma_destroy_event_channel(other);
	REFUSED(rdma_get_cm_event(other, &event), EINVAL);
}

/* Datagrams: a queue pair by its port, and a group. */
static void datagrams(struct rdma_event_channel *channel)
{
	struct sockaddr_in here = at("198.18.0.2", 7476), group = at("239.7.7.7", 0);
	struct rdma_conn_param param = { .private_data = "where", .private_data_len = 6 };
	struct rdma_cm_join_mc_attr_ex join = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS,
						.addr = (struct sockaddr *)&group };
	struct ibv_qp_init_attr attr = queues();
	struct rdma_cm_id *listener, *id, *asked;
	struct rdma_cm_event *event;
	char data[256] = "";
	int context;

	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&here) == 0 && rdma_listen(listener, 0) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0 && came(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	param.private_data_len = 181;
	param.private_data = data;
	REFUSED(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 6;
	param.private_data = "where";
	CHECK(rdma_connect(id, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(strcmp(event->param.ud.private_data, "where") == 0 && event->param.ud.private_data_len == 180);
	CHECK(rdma_ack_cm_event(event) == 0);
	attr.qp_type = IBV_QPT_RC;
	REFUSED(rdma_create_qp(asked, NULL, &attr), EINVAL);
	attr.qp_type = IBV_QPT_UD;
	CHECK(rdma_create_qp(asked, NULL, &attr) == 0);
	param.private_data = "here";
	param.private_data_len = 5;
	CHECK(rdma_accept(asked, &param) == 0);
	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && event->param.ud.qp_num == asked->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(strcmp(event->param.ud.private_data, "here") == 0 && event->param.ud.ah_attr.is_global);
	CHECK(rdma_ack_cm_event(event) == 0);
	REFUSED(rdma_disconnect(id), EINVAL);

	CHECK(rdma_join_multicast(asked, (struct sockaddr *)&group, &context) == 0);
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(event->param.ud.private_data == &context && event->param.ud.ah_attr.grh.dgid.raw[10] == 0xff);
	CHECK(rdma_ack_cm_event(event) == 0);
	REFUSED(rdma_join_multicast_ex(asked, &join, &context), EADDRINUSE);
	REFUSED(rdma_join_multicast(asked, (struct sockaddr *)&here, &context), EINVAL);
	CHECK(rdma_leave_multicast(asked, (struct sockaddr *)&group) == 0);
	REFUSED(rdma_leave_multicast(asked, (struct sockaddr *)&group), EADDRNOTAVAIL);
	join.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	join.join_flags = 5;
	REFUSED(rdma_join_multicast_ex(asked, &join, &context), EINVAL);
	join.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	CHECK(rdma_join_multicast_ex(asked, &join, &context) == 0);
	CHECK(came(channel, RDMA_CM_EVENT_MULTICAST_JOIN) == 0);
	/* Without a membership of the card, the queue pair may go. */
	rdma_destroy_qp(asked);
	CHECK(!asked->qp && !asked->send_cq && !asked->recv_cq);
	CHECK(rdma_destroy_id(asked) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
}

/* An identifier's shared receive queue, which its queue pair takes receives from. */
static void shared_receives(struct rdma_event_channel *channel)
{
	struct sockaddr_in here = at("198.18.0.2", 7477);
	struct ibv_srq_init_attr plain = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex extended = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr queue_attr = queues();
	struct rdma_cm_id *id;

	for (int kind = 0; kind < 2; kind++) {
		/* The call writes into it what the identifier has. */
		struct ibv_qp_init_attr_ex attr = {
			.qp_type = IBV_QPT_RC, .cap = queue_attr.cap, .sq_sig_all = 1, .comp_mask = IBV_QP_INIT_ATTR_PD,
		};

		CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 1000) == 0);
		CHECK(came(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
		CHECK((kind ? rdma_create_srq_ex(id, &extended) : rdma_create_srq(id, NULL, &plain)) == 0);
		CHECK(id->srq && id->srq->context == id->verbs && id->srq->pd == id->pd);
		REFUSED(rdma_create_srq(id, NULL, &plain), EINVAL);
		attr.pd = id->pd;
		CHECK(rdma_create_qp_ex(id, &attr) == 0 && id->qp->srq == id->srq);
		rdma_destroy_qp(id);
		rdma_destroy_srq(id);
		CHECK(!id->qp && !id->srq && rdma_destroy_id(id) == 0);
	}
}

static void alone(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_context **devices;
	int count = 0;

	CHECK(channel && channel->fd >= 0);
	devices = rdma_get_devices(&count);
	CHECK(devices && count == 2 && devices[0] && devices[1] && !devices[2]);
	rdma_free_devices(devices);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT") == 0);
	CHECK(strcmp(rdma_event_str(99), "UNKNOWN EVENT") == 0);
	connection(channel);
	refusals(channel);
	own_queue_pair(channel);
	bad_input(channel);
	datagrams(channel);
	shared_receives(channel);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		serve(argv[2]);
	else if (argc == 4 && strcmp(argv[1], "ask") == 0)
		ask(argv[2], argv[3]);
	else if (argc == 2 && strcmp(argv[1], "alone") == 0)
		alone();
	else
		return 2;
	puts("done");
	return 0;
}
