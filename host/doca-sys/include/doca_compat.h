/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of DOCA's functions, written for Flexcast from their names. */
#ifndef DOCA_COMPAT_H_
#define DOCA_COMPAT_H_

#define DOCA_STABLE
/*
 * Most of the interface may change, says the vendor: a program that defines no DOCA_ALLOW_EXPERIMENTAL_API is warned.
 */
#if defined(DOCA_ALLOW_EXPERIMENTAL_API) || defined(DOCA_DPA_DEVICE)
#define DOCA_EXPERIMENTAL
#else
#define DOCA_EXPERIMENTAL __attribute__((deprecated("Symbol is defined as experimental")))
#endif

#endif
