/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are refused, each a hundred times: their reasons are on stderr. */
#include <errno.h>
#include <fcntl.h>
#include <doca_dev.h>
#include "support.h"

int main(void)
{
	struct ibv_context *context = open_card(0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 70000, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_async_event event;
	struct ibv_qp_attr attr = { 0 };

	CHECK(pd && cq && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	for (int number = 0; number < 100; number++) {
		struct doca_dev *dev;

		CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
		CHECK(ibv_modify_qp(NULL, &attr, 0) == EINVAL);
		FAILS(flexio_event_handler_destroy(NULL));
		CHECK(doca_dev_open(NULL, &dev) == DOCA_ERROR_INVALID_VALUE);
		CHECK(ibv_get_async_event(context, &event) < 0 && errno == EAGAIN);
	}
	return 0;
}
