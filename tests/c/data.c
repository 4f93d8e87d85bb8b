/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device side of tests/tests/outside/c_device.rs: data at both ends of what the global pointer reaches, and beyond. With THREAD_LOCAL,
 * CONSTRUCTOR or DESTRUCTOR also what needs start-up code, which a DPA does not have.
 */
#include <flexio_dev.h>

#define SECTION(name) __attribute__((section(name)))

volatile uint32_t small_first = 0x11111111, small_second = 0x22222222; /* .sdata */
volatile uint8_t large_first[4000] = {1};                              /* .data */
volatile uint64_t between = 0x3333333333333333ull;
volatile uint8_t large_second[4000] = {2};
volatile uint16_t small_last = 0x4444;
volatile uint32_t zero_first, zero_second; /* .sbss */
volatile uint8_t zeros[5000];              /* .bss */
static const volatile uint32_t constant = 0x55555555;
SECTION(".srodata.other") const volatile uint32_t constant_other = 0x66666666;
SECTION(".other") volatile uint32_t other = 0x77777777;

#ifdef THREAD_LOCAL
_Thread_local volatile uint32_t of_each_thread = 5;
#endif
#ifdef CONSTRUCTOR
static volatile int is_constructed;
__attribute__((constructor)) static void construct(void)
{
	is_constructed = 1;
}
#endif
#ifdef DESTRUCTOR
static volatile int is_destructed;
__attribute__((destructor)) static void destruct(void)
{
	is_destructed = 1;
}
#endif

/* Bits of what does not hold. */
__dpa_rpc__ uint64_t check(uint64_t argument)
{
	uint64_t wrong = argument;

	wrong |= (small_first != 0x11111111) << 0 | (small_second != 0x22222222) << 1;
	wrong |= (between != 0x3333333333333333ull) << 2 | (small_last != 0x4444) << 3;
	wrong |= ((zero_first | zero_second | zeros[4999]) != 0) << 4;
	wrong |= (constant != 0x55555555) << 5 | (constant_other != 0x66666666) << 6;
	wrong |= (large_first[0] != 1 || large_second[0] != 2) << 7 | (other != 0x77777777) << 8;
	zero_second = 9;
	zeros[4999] = 8;
	small_second = 7;
	wrong |= (zero_second != 9 || zeros[4999] != 8 || small_second != 7 || zero_first != 0) << 9;
#ifdef THREAD_LOCAL
	wrong |= (of_each_thread != 5) << 10;
#endif
#ifdef CONSTRUCTOR
	wrong |= (is_constructed != 1) << 11;
#endif
	return wrong;
}

__dpa_rpc__ uint64_t check__unpack(void *argbuf, void *func)
{
	return ((flexio_dev_rpc_handler_t *)func)(*(uint64_t *)argbuf);
}
