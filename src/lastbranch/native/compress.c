/* Writes what zlib found in trace buffers as plain LZXPRESS. formats/etl/container/compression.py describes both, and
 * does the same: to the bit, so that a file does not depend on the form. */
#include "lastbranch.h"

enum { DECLINED = -1 };
enum { MIN_MATCH = 3, GROUP = 32, LONGEST_TOKEN = 4 + 6 };
enum { END = 256, LONGEST = 258, STORED = 0, FIXED = 1, WIDEST = 9, LENGTHS = 29, DISTANCES = 26 };

/* RFC 1951, 3.2.5. Distances up to 8,192, the window of LZXPRESS. */
static const u16 LENGTH_FROM[LENGTHS] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const u8 LENGTH_BITS[LENGTHS] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                        2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const u16 DISTANCE_FROM[DISTANCES] = {1,  2,   3,   4,   5,   7,   9,   13,   17,   25,   33,   49,   65,
                                             97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145};
static const u8 DISTANCE_BITS[DISTANCES] = {0, 0, 0, 0, 1, 1, 2, 2, 3, 3,  4,  4,  5,
                                            5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11};

struct code {
    u16 symbol;
    u8 bits;
};

static u32 reversed(u32 value, int bits)
{
    u32 result = 0;
    for (int i = 0; i < bits; i++) result |= (value >> i & 1) << (bits - 1 - i);
    return result;
}

/* The fixed codes by the next 9 bits of a stream (RFC 1951, 3.2.6). */
static void fixed_codes(struct code *codes)
{
    for (u32 at = 0; at < 1 << WIDEST; at++) {
        u32 bits = reversed(at, WIDEST);
        if (bits >> 2 < 24) codes[at] = (struct code){(u16)(256 + (bits >> 2)), 7};
        else if (bits >> 1 < 0xC0) codes[at] = (struct code){(u16)((bits >> 1) - 0x30), 8};
        else if (bits >> 1 < 0xC8) codes[at] = (struct code){(u16)((bits >> 1) - 0xC0 + 280), 8};
        else codes[at] = (struct code){(u16)(bits - 0x190 + 144), 9};
    }
}

/* -- The LZXPRESS stream under construction */

struct stream {
    const u8 *data;
    u8 *out, *end, *word, *half; /* `half`: a length byte whose high half is free */
    u32 flags;
    int tokens; /* in this group */
    u64 length, distance, last; /* the match that may go on, 0 without one; the length of its last part */
};

static inline void put16(u8 *p, u64 value)
{
    p[0] = (u8)value;
    p[1] = (u8)(value >> 8);
}

static void put32(u8 *p, u64 value)
{
    put16(p, value);
    put16(p + 2, value >> 16);
}

static inline void flag(struct stream *s, u32 bit)
{
    s->flags = s->flags << 1 | bit;
    if (++s->tokens == GROUP) {
        put32(s->word, s->flags);
        s->word = s->out;
        s->out += 4;
        s->flags = 0;
        s->tokens = 0;
    }
}

static inline int has_room(const struct stream *s) { return s->end - s->out >= LONGEST_TOKEN; }

static int flush(struct stream *s)
{
    if (!s->length) return 1;
    if (!has_room(s)) return 0;
    u64 rest = s->length - MIN_MATCH;
    s->length = 0;
    put16(s->out, (s->distance - 1) << 3 | (rest < 7 ? rest : 7));
    s->out += 2;
    if (rest >= 7) {
        u8 nibble = rest - 7 < 15 ? (u8)(rest - 7) : 15;
        if (s->half) {
            *s->half |= (u8)(nibble << 4);
            s->half = NULL;
        } else {
            s->half = s->out;
            *s->out++ = nibble;
        }
    }
    if (rest >= 22) *s->out++ = rest - 22 < 255 ? (u8)(rest - 22) : 255;
    if (rest >= 22 + 255) {
        put16(s->out, rest);
        s->out += 2;
    }
    flag(s, 1);
    return 1;
}

static inline int literals(struct stream *s, i64 at, i64 number)
{
    if (!flush(s)) return 0;
    for (i64 i = 0; i < number; i++) {
        if (!has_room(s)) return 0;
        *s->out++ = s->data[at + i];
        flag(s, 0);
    }
    return 1;
}

/* A match of the longest length of DEFLATE goes on if the next one could have its distance. */
static inline int match(struct stream *s, i64 at, u64 length, u64 distance)
{
    if (s->length && s->last == LONGEST && !memcmp(s->data + at, s->data + at - s->distance, length)) {
        s->length += length;
    } else {
        if (!flush(s)) return 0;
        s->length = length;
        s->distance = distance;
    }
    s->last = length;
    return 1;
}

/* -- The DEFLATE stream of one piece */

static inline u64 bits_at(const u8 *packed, i64 size, i64 at)
{
    i64 byte = at >> 3;
    u64 value = 0;
    if (size - byte >= 8) value = get64(packed + byte);
    else
        for (i64 i = byte; i < size; i++) value |= (u64)packed[i] << (i - byte) * 8;
    return value >> (at & 7);
}

static int piece(struct stream *s, const struct code *codes, const u8 *packed, i64 size, i64 begin, i64 end)
{
    i64 at = 0, place = begin;
    for (u64 last = 0; !last;) {
        u64 head = bits_at(packed, size, at), kind = head >> 1 & 3;
        last = head & 1;
        at += 3;
        if (kind == STORED) {
            i64 from = (at + 7) >> 3;
            if (size - from < 4) return 0;
            i64 number = get16(packed + from);
            if (number > size - from - 4 || number > end - place || !literals(s, place, number)) return 0;
            place += number;
            at = (from + 4 + number) << 3;
            continue;
        }
        if (kind != FIXED) return 0;
        for (;;) {
            if (at > size * 8) return 0;
            u64 bits = bits_at(packed, size, at);
            struct code code = codes[bits & ((1 << WIDEST) - 1)];
            bits >>= code.bits;
            at += code.bits;
            if (code.symbol < END) {
                if (place == end || !literals(s, place, 1)) return 0;
                place++;
                continue;
            }
            if (code.symbol == END) break;
            u32 which = code.symbol - END - 1u;
            if (which >= LENGTHS) return 0;
            u64 length = LENGTH_FROM[which] + (bits & ((1u << LENGTH_BITS[which]) - 1));
            bits >>= LENGTH_BITS[which];
            u32 where = reversed(bits & 31, 5);
            if (where >= DISTANCES) return 0;
            u64 distance = DISTANCE_FROM[where] + (bits >> 5 & ((1u << DISTANCE_BITS[where]) - 1));
            at += LENGTH_BITS[which] + 5 + DISTANCE_BITS[where];
            if (length > (u64)(end - place) || distance > (u64)place || !match(s, place, length, distance)) return 0;
            place += (i64)length;
        }
    }
    return place == end && at <= size * 8 && flush(s);
}

/* Write the LZXPRESS stream of `size` bytes of `data` to `out`, which has room for `room` bytes: its length, or DECLINED.
 * Piece i of `step` bytes has the DEFLATE stream that ends at packed_end[i] of `packed`; one that is not shorter than the
 * piece is not used. */
EXPORT i64 lb_compress_xpress(const u8 *data, i64 size, i64 step, const u8 *packed, const i64 *packed_end, u8 *out,
                              i64 room)
{
    struct code codes[1 << WIDEST];
    struct stream s = {.data = data, .out = out, .end = out + room, .word = out};
    if (room < LONGEST_TOKEN || step <= 0) return DECLINED;
    fixed_codes(codes);
    s.out += 4;
    for (i64 begin = 0, i = 0, from = 0; begin < size; begin += step, i++) {
        i64 end = size - begin < step ? size : begin + step, length = packed_end[i] - from;
        int done = length >= end - begin ? literals(&s, begin, end - begin)
                                         : piece(&s, codes, packed + from, length, begin, end);
        if (!done) return DECLINED;
        from = packed_end[i];
    }
    int left = GROUP - s.tokens; /* flags after the last token are 1 */
    put32(s.word, (u64)s.flags << left | (((u64)1 << left) - 1));
    return s.out - out;
}
