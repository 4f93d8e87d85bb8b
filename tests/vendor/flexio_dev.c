/* Stand-in for the vendor's device library. The calls that our firmware makes work on the emulated card, by the system
   calls of its runtime. In addition there is what makes a vendor's library hard to verify: custom instructions,
   encodings of no published extension, recursion, calls through pointers, frames of any size, a loaded section of its
   own, symbols that stay undefined. */

#include <stdint.h>

typedef struct flexio_dev_thread_ctx {
    uint32_t version;
    uint16_t outbox_config_id, window_config_id;
    uint64_t outbox_base, window_base, window_config_base, metadata;
    uint32_t error;
} thread_context;

enum { RESCHEDULE = 1, FINISH, RETRIGGER, OUTBOX_CONFIG = 6, WINDOW_CONFIG, MESSAGE = 9, ERROR, ACTIVATE, THREAD_ID, STORAGE };
enum { INFO = 4, MESSAGE_BYTES = 511 };

static uint64_t call(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    register uint64_t a0 __asm__("a0") = a;
    register uint64_t a1 __asm__("a1") = b;
    register uint64_t a2 __asm__("a2") = c;
    register uint64_t a3 __asm__("a3") = d;
    register uint64_t a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a3), "r"(a7) : "memory");
    return a0;
}

__attribute__((noreturn)) static void leave(uint64_t number, uint64_t argument)
{
    call(number, argument, 0, 0, 0);
    __builtin_trap();
}

static thread_context *context(void)
{
    thread_context *context;
    __asm__ volatile("mv %0, tp" : "=r"(context));
    return context;
}

/* Never executed by the tests: the emulated card has none of these. */
static uint64_t custom(uint64_t value)
{
    __asm__ volatile(".insn r 0x0b, 0, 0, %0, %0, %0" : "+r"(value));
    __asm__ volatile(".insn r 0x2b, 7, 127, %0, %0, %0" : "+r"(value));
    __asm__ volatile(".insn r 0x5b, 1, 2, %0, %0, %0" : "+r"(value));
    __asm__ volatile(".insn r 0x7b, 2, 1, %0, %0, %0" : "+r"(value));
    __asm__ volatile(".4byte 0xffffffff");
    return value;
}

__attribute__((section(".dpa_state"))) uint64_t flexio_dev_state[4] = {1};

__attribute__((weak)) extern void flexio_dev_user_hook(uint64_t);

/* Stack and calls that nobody can determine. */
uint64_t flexio_dev_deep(uint64_t depth, uint64_t (*then)(uint64_t))
{
    volatile char frame[(depth & 255) + 1];
    frame[depth & 255] = 1;
    if (flexio_dev_user_hook)
        flexio_dev_user_hook(depth);
    return depth == 0 ? then(custom(frame[0])) : flexio_dev_deep(depth - 1, then) + frame[depth & 255];
}

/* Division of 128 bits: of the compiler's own archive. */
uint64_t flexio_dev_scale(uint64_t value, unsigned __int128 by)
{
    return (uint64_t)((((unsigned __int128)value << 64) | flexio_dev_state[0]) / by);
}

void flexio_dev_entry(void)
{
    __builtin_trap();
}

int flexio_dev_get_thread_ctx(thread_context **out)
{
    *out = context();
    return 0;
}

uint32_t flexio_dev_get_thread_id(thread_context *of)
{
    (void)of;
    return (uint32_t)call(THREAD_ID, 0, 0, 0, 0);
}

uint64_t flexio_dev_get_thread_local_storage(thread_context *of)
{
    (void)of;
    return call(STORAGE, 0, 0, 0, 0);
}

__attribute__((noreturn)) void flexio_dev_thread_reschedule(void)
{
    leave(RESCHEDULE, 0);
}

__attribute__((noreturn)) void flexio_dev_thread_finish(void)
{
    leave(FINISH, 0);
}

__attribute__((noreturn)) void flexio_dev_thread_retrigger(void)
{
    leave(RETRIGGER, 0);
}

__attribute__((noreturn)) void flexio_dev_error(uint8_t code)
{
    leave(ERROR, code);
}

void flexio_dev_event_handler_activate(uint32_t id)
{
    call(ACTIVATE, id, 0, 0, 0);
}

/* With a custom instruction on the way of every event handler of ours. */
uint32_t flexio_dev_outbox_config(thread_context *of, uint16_t id)
{
    if (of->version == UINT32_MAX)
        return (uint32_t)flexio_dev_deep(id, custom);
    return call(OUTBOX_CONFIG, id, 0, 0, 0) != 0;
}

uint32_t flexio_dev_multi_window_config(uint32_t entity, uint16_t id, uint32_t mkey)
{
    return call(WINDOW_CONFIG, entity, id, mkey, 0) != 0;
}

uint32_t flexio_dev_multi_window_ptr_acquire(uint32_t entity, uint64_t host_address, uint64_t *device_address)
{
    *device_address = (1ull << 63) + entity * (1ull << 62) + host_address;
    return 0;
}

uint64_t strlen(const char *text);

int flexio_dev_puts(thread_context *of, char *text)
{
    (void)of;
    uint64_t bytes = strlen(text);
    if (bytes > MESSAGE_BYTES)
        bytes = MESSAGE_BYTES;
    return call(MESSAGE, 0, INFO, (uint64_t)text, bytes) == 0 ? (int)bytes : -1;
}

/* Found by name from the host: there because the whole archive is linked. */
uint64_t rpc_msg_stream_cfg(void *arguments)
{
    return (uint64_t)arguments;
}

uint64_t rpc_msg_stream_close(void *arguments)
{
    return (uint64_t)arguments;
}
