/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between the binary interfaces of MPI: name of the object, how the library is recognised, symbols that are data, and which
 * functions there are. Everything else is the same source.
 */
#ifndef FLEXCAST_MPI_ABI_H
#define FLEXCAST_MPI_ABI_H

#include <mpi.h>

#if defined(OPEN_MPI)
#define ABI_NAME "openmpi"
#elif defined(MPICH_NAME) || defined(I_MPI_VERSION)
#define ABI_NAME "mpich"
#elif defined(MPI_ABI) || defined(MPI_ABI_VERSION)
#define ABI_NAME "abi"
#else
#error "mpi.h is neither Open MPI's, nor of the MPICH family, nor that of the standard ABI"
#endif

/* MPI 4 has functions with counts of type MPI_Count, and persistent collectives. */
#if MPI_VERSION >= 4
#define ABI_LARGE_COUNTS 1
#define ABI_PERSISTENT 1
#else
#define ABI_LARGE_COUNTS 0
#define ABI_PERSISTENT 0
#endif

#if defined(OPEN_MPI)
/* Handles of Open MPI are addresses of these objects. Weak, so that a process of another MPI, or of none, can load this object and be told
 * which one it needs. */
#pragma weak ompi_mpi_comm_null
#pragma weak ompi_mpi_comm_self
#pragma weak ompi_mpi_comm_world
#pragma weak ompi_mpi_datatype_null
#pragma weak ompi_request_null
#pragma weak ompi_mpi_op_null
#pragma weak ompi_mpi_op_sum
#pragma weak ompi_mpi_op_prod
#pragma weak ompi_mpi_op_min
#pragma weak ompi_mpi_op_max
#pragma weak ompi_mpi_op_land
#pragma weak ompi_mpi_op_lor
#pragma weak ompi_mpi_op_lxor
#pragma weak ompi_mpi_op_band
#pragma weak ompi_mpi_op_bor
#pragma weak ompi_mpi_op_bxor
#pragma weak ompi_mpi_op_minloc
#pragma weak ompi_mpi_op_maxloc
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_signed_char
#pragma weak ompi_mpi_unsigned_char
#pragma weak ompi_mpi_short
#pragma weak ompi_mpi_unsigned_short
#pragma weak ompi_mpi_int
#pragma weak ompi_mpi_unsigned
#pragma weak ompi_mpi_long
#pragma weak ompi_mpi_unsigned_long
#pragma weak ompi_mpi_long_long_int
#pragma weak ompi_mpi_unsigned_long_long
#pragma weak ompi_mpi_int8_t
#pragma weak ompi_mpi_uint8_t
#pragma weak ompi_mpi_int16_t
#pragma weak ompi_mpi_uint16_t
#pragma weak ompi_mpi_int32_t
#pragma weak ompi_mpi_uint32_t
#pragma weak ompi_mpi_int64_t
#pragma weak ompi_mpi_uint64_t
#pragma weak ompi_mpi_aint
#pragma weak ompi_mpi_offset
#pragma weak ompi_mpi_count
#pragma weak ompi_mpi_float
#pragma weak ompi_mpi_double
#pragma weak ompi_mpi_c_bool
#pragma weak ompi_mpi_c_float_complex
#pragma weak ompi_mpi_c_double_complex
#pragma weak ompi_mpi_cxx_bool
#pragma weak ompi_mpi_cxx_cplex
#pragma weak ompi_mpi_cxx_dblcplex
#pragma weak ompi_mpi_float_int
#pragma weak ompi_mpi_double_int
#pragma weak ompi_mpi_long_int
#pragma weak ompi_mpi_2int
#pragma weak ompi_mpi_short_int
#pragma weak ompi_mpi_integer
#pragma weak ompi_mpi_integer1
#pragma weak ompi_mpi_integer2
#pragma weak ompi_mpi_integer4
#pragma weak ompi_mpi_integer8
#pragma weak ompi_mpi_real
#pragma weak ompi_mpi_real4
#pragma weak ompi_mpi_real8
#pragma weak ompi_mpi_dblprec
#pragma weak ompi_mpi_cplex
#pragma weak ompi_mpi_dblcplex
#pragma weak ompi_mpi_complex8
#pragma weak ompi_mpi_complex16
#endif

#endif
