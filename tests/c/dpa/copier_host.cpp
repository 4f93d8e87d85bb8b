/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the copier, in C++ and by the interface of release 25.10. */
#include <libflexio/flexio_ver.h>
#define FLEXIO_VER_USED FLEXIO_VER(25, 10, 0)
#include <vector>

#include "copier.h"
#include "host.h"

extern "C" {
extern struct flexio_app *copier;
extern flexio_func_t copier_invert;
}

static struct flexio_msg_stream *stream_of(struct host &host, const char *name)
{
	struct flexio_msg_stream_attr attr = {};
	struct flexio_msg_stream *stream = nullptr;

	attr.data_bsize = 8 << FLEXIO_MSG_DEV_LOG_DATA_CHUNK_BSIZE;
	attr.sync_mode = FLEXIO_MSG_DEV_SYNC_MODE_SYNC;
	attr.transport_mode = FLEXIO_MSG_TRANSPORT_QP_RC;
	attr.level = FLEXIO_MSG_DEV_INFO;
	attr.stream_name = const_cast<char *>(name);
	OK(flexio_msg_stream_create(host.process, &attr, stdout, nullptr, &stream));
	return stream;
}

int main()
{
	OK(flexio_version_set(FLEXIO_VER_USED));
	struct host host = start(copier);
	struct flexio_msg_stream *first = stream_of(host, "first"), *second = stream_of(host, "second");
	std::vector<uint8_t> bytes(2 * COPIED_BYTES);
	struct flexio_window *window = nullptr;
	struct copier job = {};
	uint64_t answer = 0;

	for (size_t i = 0; i < COPIED_BYTES; i++)
		bytes[i] = static_cast<uint8_t>(i * 7);
	struct ibv_mr *mr = ibv_reg_mr(host.pd, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ);
	EXPECT(mr);
	OK(flexio_window_create(host.process, host.pd, &window));
	job.from = reinterpret_cast<uint64_t>(bytes.data());
	job.to = job.from + COPIED_BYTES;
	job.mkey = mr->lkey;
	job.window = flexio_window_get_id(window);
	job.stream = flexio_msg_stream_get_id(second);
	OK(flexio_process_call(host.process, &copier_invert, &answer, device_copy(&host, &job, sizeof job)));
	EXPECT(answer == 0);
	for (size_t i = 0; i < COPIED_BYTES; i++)
		EXPECT(bytes[COPIED_BYTES + i] == static_cast<uint8_t>(~bytes[i]));
	OK(flexio_msg_stream_flush(first));
	OK(flexio_msg_stream_flush(second));
	OK(flexio_msg_stream_destroy(second));
	OK(flexio_msg_stream_destroy(first));
	OK(flexio_window_destroy(window));
	EXPECT(ibv_dereg_mr(mr) == 0);
	stop(&host);
	puts("the copier ends well");
	return EXIT_SUCCESS;
}
