/* SPDX-License-Identifier: Apache-2.0 */
/* What mistakes_host.c and mistakes_device.c agree on. */
#ifndef MISTAKES_H
#define MISTAKES_H
#include <stdint.h>

/* The mistakes: one of them is made in a run. */
#define MISTAKES(M)                                                                                      \
	M(none) M(index_never_reported) M(drains_for_ever) M(returns) M(never_posts_again) M(never_arms_again) \
	M(never_run) \
	M(unknown_key) M(unknown_opcode) M(doorbell_beyond_ring) M(deep_recursion) M(two_locks) M(one_lock) M(spins) \
	M(unlocked_sum) M(unfenced_flag)

enum mistake {
#define MISTAKE(name) name,
	MISTAKES(MISTAKE)
#undef MISTAKE
};

enum { LOG_RING = 4, RING = 1 << LOG_RING, MESSAGE = 64, ANSWER = 8 };

/* What an event handler works with: one queue pair, and one completion queue for both of its sides. */
struct lane {
	uint64_t cq_ring, cq_record;
	uint64_t receives, sends, qp_record;
	/* RING messages, and behind them RING answers. */
	uint64_t buffers;
	uint32_t key, cqn, qpn, outbox;
	uint32_t log_cq;
	/* Which of the handlers it is. */
	uint32_t number;
	enum mistake mistake;
	/* Of the handler itself. */
	uint32_t consumed, sent, configured;
};
#endif
