/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences and counters of a DPA thread. A memory fence acts on memory of the process, an MMIO fence on windows and outboxes.
 * A memory fence after writes (__dpa_thread_memory_writeback is one) also orders them before the doorbells that follow.
 * Arguments of the fences are literal: __DPA_R, __DPA_W, __DPA_RW.
 */
#ifndef DPAINTRIN_H
#define DPAINTRIN_H

#include <stdint.h>

#define DPA_INTRIN_VERSION(major, minor) (((major) << 16) | (minor))
#ifndef DPA_INTRIN_VERSION_USED
#define DPA_INTRIN_VERSION_USED DPA_INTRIN_VERSION(1, 3)
#endif
#if DPA_INTRIN_VERSION_USED != DPA_INTRIN_VERSION(1, 3)
#error "DPA_INTRIN_VERSION_USED: the intrinsics here are those of version 1.3, DPA_INTRIN_VERSION(1, 3)"
#endif

#define __DPA_HEAP 0
#define __DPA_MEMORY 1
#define __DPA_MMIO 2
#define __DPA_SYSTEM 3

#define __DPA_R 1
#define __DPA_W 2
#define __DPA_RW 3

static inline __attribute__((always_inline)) void __dpa_thread_fence(int space, int pred, int succ)
{
	/* One instruction each: the conditions are constants. */
	if (space == __DPA_SYSTEM) {
		__asm__ volatile("fence iorw, iorw" ::: "memory");
	} else if (space == __DPA_MMIO) {
		if (pred == __DPA_R && succ == __DPA_R)
			__asm__ volatile("fence ir, ir" ::: "memory");
		else if (pred == __DPA_W && succ == __DPA_W)
			__asm__ volatile("fence ow, ow" ::: "memory");
		else
			__asm__ volatile("fence iorw, iorw" ::: "memory");
	} else {
		if (pred == __DPA_R && succ == __DPA_R)
			__asm__ volatile("fence r, r" ::: "memory");
		/* Writes come before later doorbells, too: programs have no other fence between an entry and its doorbell. */
		else if (pred == __DPA_W && succ == __DPA_W)
			__asm__ volatile("fence w, ow" ::: "memory");
		else
			__asm__ volatile("fence rw, orw" ::: "memory");
	}
}

#define __dpa_thread_memory_fence(pred, succ) __dpa_thread_fence(__DPA_MEMORY, pred, succ)
#define __dpa_thread_outbox_fence(pred, succ) __dpa_thread_fence(__DPA_MMIO, pred, succ)
#define __dpa_thread_window_fence(pred, succ) __dpa_thread_fence(__DPA_MMIO, pred, succ)
#define __dpa_thread_system_fence() __dpa_thread_fence(__DPA_SYSTEM, __DPA_RW, __DPA_RW)
#define __dpa_thread_window_read_inv() __dpa_thread_fence(__DPA_MMIO, __DPA_R, __DPA_R)
#define __dpa_thread_window_writeback() __dpa_thread_fence(__DPA_MMIO, __DPA_W, __DPA_W)
#define __dpa_thread_memory_writeback() __dpa_thread_fence(__DPA_MEMORY, __DPA_W, __DPA_W)
#define __dpa_compiler_barrier() __asm__ volatile("" ::: "memory")

#define FLEXCAST_DPA_COUNTER(name, csr)                                                                                \
	static inline __attribute__((always_inline)) uint64_t name(void)                                               \
	{                                                                                                              \
		uint64_t value;                                                                                        \
		__asm__ volatile("csrr %0, " csr : "=r"(value));                                                       \
		return value;                                                                                          \
	}

/* Of the execution unit: differences mean something within one activation. */
FLEXCAST_DPA_COUNTER(__dpa_thread_cycles, "cycle")
FLEXCAST_DPA_COUNTER(__dpa_thread_inst_ret, "instret")
FLEXCAST_DPA_COUNTER(__dpa_thread_time, "time")

#undef FLEXCAST_DPA_COUNTER

#endif
