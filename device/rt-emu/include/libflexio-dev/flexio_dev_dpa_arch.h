/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outbox page of a thread: 64-bit stores to its registers are doorbells. A store to a register of what the emulated card
 * does not have ends the process and says which.
 */
#ifndef FLEXIO_DEV_DPA_ARCH_H
#define FLEXIO_DEV_DPA_ARCH_H

#include <stdint.h>

/* Offsets of registers. */
#define FLEXCAST_OUTBOX_CQ_DB 0x100
#define FLEXCAST_OUTBOX_EQ_DB_REARM 0x140
#define FLEXCAST_OUTBOX_EQ_DB_NO_REARM 0x180
#define FLEXCAST_OUTBOX_SXD_DB 0x1C0
#define FLEXCAST_OUTBOX_EMU_CAP 0x200
#define FLEXCAST_OUTBOX_EMU_CAP_TRIGGER 0x240
#define FLEXCAST_OUTBOX_RXT_DB 0x280
#define FLEXCAST_OUTBOX_CC_DB 0x340
#define FLEXCAST_OUTBOX_CC_DB_MSB 0x348

/* Values of registers. */
#define OUTBOX_V_CQ_DB(cqn, ci) ((uint64_t)((ci) & 0xFFFFFF) << 32 | ((cqn) & 0xFFFFFF))
#define OUTBOX_V_EQ_DB_REARM(eqn, ci) ((uint64_t)((ci) & 0xFFFFFF) << 32 | ((eqn) & 0xFFFFFF))
#define OUTBOX_V_EQ_DB_NO_REARM(eqn, ci) OUTBOX_V_EQ_DB_REARM(eqn, ci)
#define OUTBOX_V_SXD_DB(pi, qpn) ((uint64_t)((qpn) & 0xFFFFFF) << 32 | ((pi) & 0xFFFF))
#define OUTBOX_V_EMU_CAP(qpn, id) ((uint64_t)((id) & 0x3FFFFFF) << 32 | ((qpn) & 0xFFFFFF))
#define OUTBOX_V_EMU_CAP_TRIGGER(cqn, id) OUTBOX_V_EMU_CAP(cqn, id)
#define OUTBOX_V_RXT_DB(cqn) ((uint64_t)((cqn) & 0xFFFFFF))

/* Stores `value` to a register, which is named without its prefix. */
#define outbox_write(base, reg, value) \
	(*(volatile uint64_t *)((uint64_t)(base) + FLEXCAST_OUTBOX_##reg) = (uint64_t)(value))

#endif
