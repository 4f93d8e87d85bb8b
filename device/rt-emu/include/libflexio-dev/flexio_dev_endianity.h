/* SPDX-License-Identifier: Apache-2.0 */
/* Byte orders. The DPA is little-endian; the network and the hardware's queues are big-endian. */
#ifndef FLEXIO_DEV_ENDIANITY_H
#define FLEXIO_DEV_ENDIANITY_H

#define cpu_to_le16(value) (value)
#define cpu_to_le32(value) (value)
#define cpu_to_le64(value) (value)
#define le16_to_cpu(value) (value)
#define le32_to_cpu(value) (value)
#define le64_to_cpu(value) (value)

#define cpu_to_be16(value) __builtin_bswap16(value)
#define cpu_to_be32(value) __builtin_bswap32(value)
#define cpu_to_be64(value) __builtin_bswap64(value)
#define be16_to_cpu(value) __builtin_bswap16(value)
#define be32_to_cpu(value) __builtin_bswap32(value)
#define be64_to_cpu(value) __builtin_bswap64(value)

#endif
