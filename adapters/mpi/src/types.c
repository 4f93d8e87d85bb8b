/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data types and operators of MPI, and what they are in Flexcast.
 */
#include <string.h>

#include "shim.h"

enum class { INTEGER = 1, FLOATING = 2, COMPLEX = 4, LOGICAL = 8, BYTES = 16, PAIR = 32 };

typedef struct {
	MPI_Datatype type;
	uint32_t code;
	enum class class;
	/* From one element to the next. A type that is not so long here, such as a REAL of eight bytes, goes to PMPI. */
	size_t bytes;
} known_type;

/* All types by X(name of MPI, name of Flexcast, class, type of C). */
#define TYPES(X) \
	X(DOUBLE, DOUBLE, FLOATING, double) \
	X(INT, INT32, INTEGER, int32_t) \
	X(FLOAT, FLOAT, FLOATING, float) \
	X(LONG, INT64, INTEGER, int64_t) \
	X(UNSIGNED_LONG, UINT64, INTEGER, uint64_t) \
	X(UNSIGNED, UINT32, INTEGER, uint32_t) \
	X(LONG_LONG, INT64, INTEGER, int64_t) \
	X(UNSIGNED_LONG_LONG, UINT64, INTEGER, uint64_t) \
	X(SIGNED_CHAR, INT8, INTEGER, int8_t) \
	X(UNSIGNED_CHAR, UINT8, INTEGER, uint8_t) \
	X(SHORT, INT16, INTEGER, int16_t) \
	X(UNSIGNED_SHORT, UINT16, INTEGER, uint16_t) \
	X(INT8_T, INT8, INTEGER, int8_t) \
	X(UINT8_T, UINT8, INTEGER, uint8_t) \
	X(INT16_T, INT16, INTEGER, int16_t) \
	X(UINT16_T, UINT16, INTEGER, uint16_t) \
	X(INT32_T, INT32, INTEGER, int32_t) \
	X(UINT32_T, UINT32, INTEGER, uint32_t) \
	X(INT64_T, INT64, INTEGER, int64_t) \
	X(UINT64_T, UINT64, INTEGER, uint64_t) \
	X(AINT, INT64, INTEGER, int64_t) \
	X(OFFSET, INT64, INTEGER, int64_t) \
	X(COUNT, INT64, INTEGER, int64_t) \
	X(C_BOOL, BOOL, LOGICAL, _Bool) \
	X(CXX_BOOL, BOOL, LOGICAL, _Bool) \
	X(C_FLOAT_COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex) \
	X(C_DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex) \
	X(CXX_FLOAT_COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex) \
	X(CXX_DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex) \
	X(BYTE, BYTE, BYTES, uint8_t) \
	X(FLOAT_INT, FLOAT_INT, PAIR, struct { float value; int index; }) \
	X(DOUBLE_INT, DOUBLE_INT, PAIR, struct { double value; int index; }) \
	X(LONG_INT, LONG_INT, PAIR, struct { long value; int index; }) \
	X(2INT, 2INT, PAIR, struct { int value; int index; }) \
	X(SHORT_INT, SHORT_INT, PAIR, struct { short value; int index; }) \
	X(INTEGER, INT32, INTEGER, int32_t) \
	X(INTEGER1, INT8, INTEGER, int8_t) \
	X(INTEGER2, INT16, INTEGER, int16_t) \
	X(INTEGER4, INT32, INTEGER, int32_t) \
	X(INTEGER8, INT64, INTEGER, int64_t) \
	X(REAL, FLOAT, FLOATING, float) \
	X(REAL4, FLOAT, FLOATING, float) \
	X(REAL8, DOUBLE, FLOATING, double) \
	X(DOUBLE_PRECISION, DOUBLE, FLOATING, double) \
	X(COMPLEX, FLOAT_COMPLEX, COMPLEX, float _Complex) \
	X(DOUBLE_COMPLEX, DOUBLE_COMPLEX, COMPLEX, double _Complex) \
	X(COMPLEX8, FLOAT_COMPLEX, COMPLEX, float _Complex) \
	X(COMPLEX16, DOUBLE_COMPLEX, COMPLEX, double _Complex)

#define ONE(...) +1
enum { MOST_TYPES = 0 TYPES(ONE) };
#undef ONE

/* Those that this MPI has: handles are known when MPI is, not before. */
static known_type types[MOST_TYPES];
static int type_count;

typedef struct {
	MPI_Op op;
	uint32_t code;
	int classes;
} known_operator;

/* All operators by X(name of MPI, name of Flexcast, classes of types). */
#define OPERATORS(X) \
	X(SUM, SUM, INTEGER | FLOATING | COMPLEX) \
	X(PROD, PRODUCT, INTEGER | FLOATING | COMPLEX) \
	X(MIN, MIN, INTEGER | FLOATING) \
	X(MAX, MAX, INTEGER | FLOATING) \
	X(LAND, LOGICAL_AND, INTEGER | LOGICAL) \
	X(LOR, LOGICAL_OR, INTEGER | LOGICAL) \
	X(LXOR, LOGICAL_XOR, INTEGER | LOGICAL) \
	X(BAND, BIT_AND, INTEGER | BYTES) \
	X(BOR, BIT_OR, INTEGER | BYTES) \
	X(BXOR, BIT_XOR, INTEGER | BYTES) \
	X(MINLOC, MINLOC, PAIR) \
	X(MAXLOC, MAXLOC, PAIR)

#define ONE(...) +1
enum { OPERATOR_COUNT = 0 OPERATORS(ONE) };
#undef ONE

static known_operator operators[OPERATOR_COUNT];

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
	if (PMPI(Type_create_struct)(2, lengths, places, parts, &type) || PMPI(Type_commit)(&type))
		return false;
	int failed = PMPI(Pack)(&value, 1, type, packed, sizeof packed, &position, MPI_COMM_SELF);
	PMPI(Type_free)(&type);
	return !failed && position == 9 && packed[0] == 'f' && !memcmp(packed + 1, &value.second, sizeof value.second);
}

bool types_start(void)
{
#define T(type, code, class, c) {MPI_##type, FLEXCAST_##code, class, sizeof(c)},
#define O(op, code, classes) {MPI_##op, FLEXCAST_##code, classes},
	const known_type all[] = {TYPES(T)};
	const known_operator every[] = {OPERATORS(O)};
#undef T
#undef O
	memcpy(operators, every, sizeof operators);
	type_count = 0;
	for (int at = 0; at < MOST_TYPES; at++) {
		MPI_Count lower, extent;
		if (all[at].type && type_is(all[at].type) && !PMPI(Type_get_extent_x)(all[at].type, &lower, &extent) && (size_t)extent == all[at].bytes)
			types[type_count++] = all[at];
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
	if (!type_is(type) || PMPI(Type_size_x)(type, &size) || size < 0)
		return false;
	*bytes = (size_t)size;
	return true;
}

enum reason type_reduction(MPI_Datatype type, MPI_Op op, uint32_t *code, uint32_t *operator, size_t *bytes)
{
	int at = 0, with = 0;
	while (with < OPERATOR_COUNT && operators[with].op != op)
		with++;
	if (with == OPERATOR_COUNT)
		return REASON_OPERATOR;
	while (at < type_count && types[at].type != type)
		at++;
	if (at == type_count)
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
