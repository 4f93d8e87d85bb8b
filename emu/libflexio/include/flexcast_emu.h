/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may ask of the emulator beyond the vendor's interfaces. On a card these calls do not exist; guard them.
 */
#ifndef FLEXCAST_EMU_H
#define FLEXCAST_EMU_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lets the next thing happen in the emulated machine; false when nothing is due until the host acts. Emulated cards move
 * only inside calls, so a loop that waits for the firmware to write host memory calls this where it would pause.
 */
bool flexcast_emu_relax(void);

/* Virtual time in picoseconds. */
uint64_t flexcast_emu_now_ps(void);

/*
 * Whether the cards move by themselves, at most as fast as the wall clock: the machine is joined to others by a bridge. Spans of
 * virtual time are figures of the computer then, not of a card.
 */
bool flexcast_emu_is_bridged(void);

#ifdef __cplusplus
}
#endif

#endif
