/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data types and operators of MPI, and what they are in Flexcast.
 */
#include <string.h>

#include "shim.h"

enum class { INTEGER = 1, FLOATING = 2, COMPLEX = 4, LOGICAL = 8, BYTES = 16, PAIR = 32 };

static struct {
	MPI_Datatype type;
	uint32_t code;
	enum class class;
	/* From one element to the next. A type that is not so long here, such as a REAL of eight bytes, goes to PMPI. */
	size_t bytes;
	bool usable;
} types[] = {
#define T(type, code, class, c) {MPI_##type, FLEXCAST_##code, class, sizeof(c), false}
	T(DOUBLE, DOUBLE, FLOATING, double),
	T(INT, INT32, INTEGER, int32_t),
	T(FLOAT, FLOAT, FLOATING, float),
	T(LONG, INT64, INTEGER, int64_t),
	T(UNSIGNED_LONG, UINT64, INTEGER, uint64_t),
	T(UNSIGNED, UINT32, INTEGER, uint32_t),
	T(LONG_LONG, INT64, INTEGER, int64_t),
	T(UNSIGNED_LONG_LONG, UINT64, INTEGER, uint64_t),
	T(SIGNED_CHAR, INT8, INTEGER, int8_t),
	T(UNSIGNED_CHAR, UINT8, INTEGER, uint8_t),
	T(SHORT, INT16, INTEGER, int16_t),
	T(UNSIGNED_SHORT, UINT16, INTEGER, uint16_t),
	T(INT8_T, INT8, INTEGER, int8_t),
	T(UINT8_T, UINT8, INTEGER, uint8_t),
	T(INT16_T, INT16, INTEGER, int16_t),
	T(UINT16_T, UINT16, INTEGER, uint16_t),
	T(INT32_T, INT32, INTEGER, int32_t),
	T(UINT32_T, UINT32, INTEGER, uint32_t),
	T(INT64_T, INT64, INTEGER, int64_t),
	T(UINT64_T, UINT64, INTEGER, uint64_t),
	T(AINT, INT64, INTEGER, int64_t),
	T(OFFSET, INT64, INTEGER, int64_t),
	T(COUNT, INT64, INTEGER, int64_t),
	T(C_BOOL, BOOL, LOGICAL, _Bool),
	T(CXX_BOOL, BOOL, LOGICAL, _Bool),
	T(C_FLOAT_COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex),
	T(C_DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex),
	T(CXX_FLOAT_COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex),
	T(CXX_DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex),
	T(BYTE, BYTE, BYTES, uint8_t),
	T(FLOAT_INT, FLOAT_INT, PAIR, struct { float value; int index; }),
	T(DOUBLE_INT, DOUBLE_INT, PAIR, struct { double value; int index; }),
	T(LONG_INT, LONG_INT, PAIR, struct { long value; int index; }),
	T(2INT, 2INT, PAIR, struct { int value; int index; }),
	T(SHORT_INT, SHORT_INT, PAIR, struct { short value; int index; }),
	T(INTEGER, INT32, INTEGER, int32_t),
	T(INTEGER1, INT8, INTEGER, int8_t),
	T(INTEGER2, INT16, INTEGER, int16_t),
	T(INTEGER4, INT32, INTEGER, int32_t),
	T(INTEGER8, INT64, INTEGER, int64_t),
	T(REAL, FLOAT, FLOATING, float),
	T(REAL4, FLOAT, FLOATING, float),
	T(REAL8, DOUBLE, FLOATING, double),
	T(DOUBLE_PRECISION, DOUBLE, FLOATING, double),
	T(COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex),
	T(DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex),
	T(COMPLEX8, FLOAT_COMPLEX, COMPLEX, float _Complex),
	T(COMPLEX16, DOUBLE_COMPLEX, COMPLEX, double _Complex),
#undef T
};

enum { TYPES = sizeof types / sizeof types[0] };

static const struct {
	MPI_Op op;
	uint32_t code;
	int classes;
} operators[] = {
	{MPI_SUM, FLEXCAST_SUM, INTEGER | FLOATING | COMPLEX},
	{MPI_PROD, FLEXCAST_PRODUCT, INTEGER | FLOATING | COMPLEX},
	{MPI_MIN, FLEXCAST_MIN, INTEGER | FLOATING},
	{MPI_MAX, FLEXCAST_MAX, INTEGER | FLOATING},
	{MPI_LAND, FLEXCAST_LOGICAL_AND, INTEGER | LOGICAL},
	{MPI_LOR, FLEXCAST_LOGICAL_OR, INTEGER | LOGICAL},
	{MPI_LXOR, FLEXCAST_LOGICAL_XOR, INTEGER | LOGICAL},
	{MPI_BAND, FLEXCAST_BIT_AND, INTEGER | BYTES},
	{MPI_BOR, FLEXCAST_BIT_OR, INTEGER | BYTES},
	{MPI_BXOR, FLEXCAST_BIT_XOR, INTEGER | BYTES},
	{MPI_MINLOC, FLEXCAST_MINLOC, PAIR},
	{MPI_MAXLOC, FLEXCAST_MAXLOC, PAIR},
};

enum { OPERATORS = sizeof operators / sizeof operators[0] };

/* Whether packing gives the bare bytes, as the copies of blocks need. It does in every MPI for computers of one kind; this one is asked. */
static bool packs_bare_bytes(void)
{
	const int lengths[2] = {1, 1};
	const struct {
		char first;
		double second;
	} value = {'f', 1.5};
	const MPI_Aint places[2] = {0, (const char *)&value.second - (const char *)&value};
	MPI_Datatype parts[2] = {MPI_BYTE, MPI_DOUBLE}, type;
	char packed[64];
	int position = 0;
	if (PMPI_Type_create_struct(2, lengths, places, parts, &type) || PMPI_Type_commit(&type))
		return false;
	int failed = PMPI_Pack(&value, 1, type, packed, sizeof packed, &position, MPI_COMM_SELF);
	PMPI_Type_free(&type);
	return !failed && position == 9 && packed[0] == 'f' && !memcmp(packed + 1, &value.second, sizeof value.second);
}

bool types_start(void)
{
	for (int at = 0; at < TYPES; at++) {
		MPI_Count lower, extent;
		if (types[at].type == MPI_DATATYPE_NULL || PMPI_Type_get_extent_x(types[at].type, &lower, &extent))
			continue;
		types[at].usable = (size_t)extent == types[at].bytes;
	}
	return packs_bare_bytes();
}

bool type_is(MPI_Datatype type)
{
	return type != MPI_DATATYPE_NULL;
}

bool type_size(MPI_Datatype type, size_t *bytes)
{
	MPI_Count size;
	if (!type_is(type) || PMPI_Type_size_x(type, &size) || size < 0)
		return false;
	*bytes = (size_t)size;
	return true;
}

enum reason type_reduction(MPI_Datatype type, MPI_Op op, uint32_t *code, uint32_t *operator, size_t *bytes)
{
	int at = 0, with = 0;
	while (with < OPERATORS && operators[with].op != op)
		with++;
	if (with == OPERATORS)
		return REASON_OPERATOR;
	while (at < TYPES && !(types[at].type == type && types[at].usable))
		at++;
	if (at == TYPES)
		return REASON_TYPE;
	if (!(operators[with].classes & types[at].class))
		return REASON_OPERATOR;
	*code = types[at].code;
	*operator = operators[with].code;
	*bytes = types[at].bytes;
	return TAKEN;
}

bool multiply(size_t one, size_t other, size_t *product)
{
	return !__builtin_mul_overflow(one, other, product) && *product <= PTRDIFF_MAX;
}
