/* Writes lists of numbers as text, for `dump`: a trace log has dozens of addresses in each stack. */
#include "lastbranch.h"

enum { DIGITS = 16, DECLINED = -1 };

/* `rows` lists of hexadecimal numbers, one after the other, as [0x1,0x2]: row i is values[offsets[i] .. offsets[i + 1]]. With
 * `quote`, each number is in double quotes. Between two numbers are the `between` bytes at `comma`. ends[i] is where the text
 * of row i ends. The length of the text; DECLINED for rows beyond the `count` values, or without room. */
EXPORT i64 lb_format_hex_lists(const u64 *values, i64 count, const i64 *offsets, i64 rows, int quote, const u8 *comma,
                               i64 between, u8 *out, i64 room, i64 *ends)
{
    static const char digits[] = "0123456789abcdef";
    u8 *o = out;
    i64 most = DIGITS + 4 + between;
    for (i64 i = 0; i < rows; i++) {
        i64 from = offsets[i], past = offsets[i + 1];
        if (from < 0 || past < from || past > count || room - (o - out) < 2) return DECLINED;
        if (past - from > (room - (o - out) - 2) / most) return DECLINED;
        *o++ = '[';
        for (i64 k = from; k < past; k++) {
            u64 value = values[k];
            int bits = value ? (67 - __builtin_clzll(value)) & ~3 : 4;
            if (k > from) {
                memcpy(o, comma, (size_t)between);
                o += between;
            }
            if (quote) *o++ = '"';
            *o++ = '0';
            *o++ = 'x';
            while (bits) *o++ = (u8)digits[value >> (bits -= 4) & 15];
            if (quote) *o++ = '"';
        }
        *o++ = ']';
        ends[i] = o - out;
    }
    return o - out;
}
