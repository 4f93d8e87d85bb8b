/* Stand-in for the vendor's C library: the functions that compilers call, and one that prints use. */

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    volatile char *out = to;
    for (const char *in = from; bytes > 0; bytes--)
        *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, size_t bytes)
{
    volatile char *out = to;
    const char *in = from;
    if (out < in)
        return memcpy(to, from, bytes);
    while (bytes-- > 0)
        out[bytes] = in[bytes];
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    for (volatile char *out = to; bytes > 0; bytes--)
        *out++ = (char)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t bytes)
{
    const volatile unsigned char *a = one, *b = other;
    for (; bytes > 0; bytes--, a++, b++)
        if (*a != *b)
            return *a - *b;
    return 0;
}

size_t strlen(const char *text)
{
    const volatile char *end = text;
    while (*end)
        end++;
    return (size_t)(end - (const volatile char *)text);
}
