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
/* Handles of Open MPI are addresses of these objects, which are looked up as functions are: see pmpi.h. */
#define MPI_OBJECTS(X) \
	X(ompi_mpi_comm_null) X(ompi_mpi_comm_self) X(ompi_mpi_comm_world) X(ompi_mpi_datatype_null) \
	X(ompi_request_null) X(ompi_mpi_op_null) X(ompi_mpi_op_sum) X(ompi_mpi_op_prod) X(ompi_mpi_op_min) \
	X(ompi_mpi_op_max) X(ompi_mpi_op_land) X(ompi_mpi_op_lor) X(ompi_mpi_op_lxor) X(ompi_mpi_op_band) \
	X(ompi_mpi_op_bor) X(ompi_mpi_op_bxor) X(ompi_mpi_op_minloc) X(ompi_mpi_op_maxloc) X(ompi_mpi_byte) \
	X(ompi_mpi_signed_char) X(ompi_mpi_unsigned_char) X(ompi_mpi_short) X(ompi_mpi_unsigned_short) X(ompi_mpi_int) \
	X(ompi_mpi_unsigned) X(ompi_mpi_long) X(ompi_mpi_unsigned_long) X(ompi_mpi_long_long_int) \
	X(ompi_mpi_unsigned_long_long) X(ompi_mpi_int8_t) X(ompi_mpi_uint8_t) X(ompi_mpi_int16_t) X(ompi_mpi_uint16_t) \
	X(ompi_mpi_int32_t) X(ompi_mpi_uint32_t) X(ompi_mpi_int64_t) X(ompi_mpi_uint64_t) X(ompi_mpi_aint) \
	X(ompi_mpi_offset) X(ompi_mpi_count) X(ompi_mpi_float) X(ompi_mpi_double) X(ompi_mpi_c_bool) \
	X(ompi_mpi_c_float_complex) X(ompi_mpi_c_double_complex) X(ompi_mpi_cxx_bool) X(ompi_mpi_cxx_cplex) \
	X(ompi_mpi_cxx_dblcplex) X(ompi_mpi_float_int) X(ompi_mpi_double_int) X(ompi_mpi_long_int) X(ompi_mpi_2int) \
	X(ompi_mpi_short_int) X(ompi_mpi_integer) X(ompi_mpi_integer1) X(ompi_mpi_integer2) X(ompi_mpi_integer4) \
	X(ompi_mpi_integer8) X(ompi_mpi_real) X(ompi_mpi_real4) X(ompi_mpi_real8) X(ompi_mpi_dblprec) \
	X(ompi_mpi_cplex) X(ompi_mpi_dblcplex) X(ompi_mpi_complex8) X(ompi_mpi_complex16)

#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, object) ((type)pmpi_objects.object)
#endif

#endif
