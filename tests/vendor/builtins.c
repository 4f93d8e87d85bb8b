/* Stand-in for the functions of clang's runtime that the device library needs. */

unsigned __int128 __udivti3(unsigned __int128 dividend, unsigned __int128 divisor)
{
    unsigned __int128 quotient = 0, rest = 0;
    for (int bit = 127; bit >= 0; bit--) {
        rest = rest << 1 | (dividend >> bit & 1);
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1;
        }
    }
    return quotient;
}
