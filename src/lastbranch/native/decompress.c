/* Decodes trace buffers: plain LZXPRESS, LZXPRESS with Huffman codes, LZNT1. formats/etl/container/decompression.py
 * describes the formats, decodes the same, and words the damage: here any damage is DAMAGED. */
#include "lastbranch.h"

enum { DECODED, DAMAGED };
enum { LZNT1 = 2, XPRESS = 3, XPRESS_HUFF = 4 }; /* COMPRESSION_FORMAT_*, ntifs.h */
enum { MIN_MATCH = 3, WIDE = 16 };

/* A match length that does not fit in its field, as _long_length reads it. */
static int long_length(const u8 **at, const u8 *end, u64 base, u64 *length)
{
    const u8 *p = *at;
    if (p == end) return 0;
    u64 value = *p++;
    if (value != 255) {
        value += base;
    } else {
        if (end - p < 2) return 0;
        value = get16(p);
        p += 2;
        if (!value) {
            if (end - p < 4) return 0;
            value = get32(p);
            p += 4;
        }
        if (value < base) return 0;
    }
    *at = p;
    *length = value;
    return 1;
}

/* Copies a match that may overlap its own output. Writes up to 15 bytes more than `length`. */
static inline void copy_wide(u8 *out, u64 distance, u64 length)
{
    static const u8 REPEATED[8] = {0, 8, 8, 9, 8, 10, 12, 14}; /* the least multiple of a distance from 8 on */
    const u8 *from = out - distance;
    u8 *end = out + length;
    if (distance >= WIDE) {
        do {
            memcpy(out, from, WIDE);
            out += WIDE;
            from += WIDE;
        } while (out < end);
        return;
    }
    if (distance < 8) {
        for (int i = 0; i < 8; i++) out[i] = from[i];
        out += 8;
        from = out - REPEATED[distance];
    }
    while (out < end) {
        memcpy(out, from, 8);
        out += 8;
        from += 8;
    }
}

static inline void copy_exactly(u8 *out, u64 distance, u64 length)
{
    for (const u8 *from = out - distance; length; length--) *out++ = *from++;
}

/* -- Plain LZXPRESS. While there is room for it, a group of 32 tokens is read without looking for the end of the input,
 * and copies write whole words. */

enum { LONGEST_GROUP = 4 + 32 * 10, SPARE = 64 };

static int xpress(const u8 *in, i64 length_in, u8 *out, i64 size)
{
    const u8 *p = in, *end = in + length_in;
    u8 *o = out, *stop = out + size;
    u64 half = 0; /* 10 plus the half byte that waits for the next long match */
    while (p < end) {
        if (end - p < 4) return DAMAGED;
        int wide = end - p >= LONGEST_GROUP + SPARE;
        u32 flags = get32(p);
        p += 4;
        int left = 32;
        while (wide && left && stop - o >= SPARE) {
            int run = flags ? __builtin_clz(flags) : 32;
            if (run > left) run = left;
            memcpy(o, p, WIDE);
            if (run > WIDE) memcpy(o + WIDE, p + WIDE, WIDE);
            p += run;
            o += run;
            left -= run;
            if (!left) break;
            flags <<= run;
            flags <<= 1;
            left--;
            u32 word = get16(p);
            p += 2;
            u64 length = (word & 7) + MIN_MATCH, distance = (word >> 3) + 1;
            if (length == 10) {
                if (half) {
                    length = half;
                    half = 0;
                } else {
                    length = 10 + (*p & 15);
                    half = 10 + (*p++ >> 4);
                }
                if (length == 25) {
                    if (!long_length(&p, end, 22, &length)) return DAMAGED;
                    length += MIN_MATCH;
                }
            }
            if (distance > (u64)(o - out) || length > (u64)(stop - o)) return DAMAGED;
            if ((u64)(stop - o) - length >= WIDE) copy_wide(o, distance, length);
            else copy_exactly(o, distance, length);
            o += length;
        }
        for (; left && p < end; left--, flags <<= 1) {
            if (!(flags >> 31)) {
                if (o == stop) return DAMAGED;
                *o++ = *p++;
                continue;
            }
            if (end - p < 2) return DAMAGED;
            u32 word = get16(p);
            p += 2;
            u64 length = (word & 7) + MIN_MATCH, distance = (word >> 3) + 1;
            if (length == 10) {
                if (half) {
                    length = half;
                    half = 0;
                } else {
                    if (p == end) return DAMAGED;
                    length = 10 + (*p & 15);
                    half = 10 + (*p++ >> 4);
                }
                if (length == 25) {
                    if (!long_length(&p, end, 22, &length)) return DAMAGED;
                    length += MIN_MATCH;
                }
            }
            if (distance > (u64)(o - out) || length > (u64)(stop - o)) return DAMAGED;
            copy_exactly(o, distance, length);
            o += length;
        }
    }
    return o == stop ? DECODED : DAMAGED;
}

/* -- LZXPRESS with Huffman codes */

enum { BLOCK = 1 << 16, TABLE = 256, LONGEST = 15 };

struct bits {
    const u8 *at, *end;
    u64 value; /* the next `count` bits */
    u32 count, padding; /* the last `padding` of them are after the end of the input */
};

static inline void fill(struct bits *b)
{
    u32 word = 0;
    if (b->end - b->at >= 2) {
        word = get16(b->at);
        b->at += 2;
    } else { /* a lone byte lacks the bits that come first */
        if (b->at < b->end) word = *b->at++;
        b->padding += 16;
    }
    b->value = b->value << 16 | word;
    b->count += 16;
}

static inline u32 peek(const struct bits *b, u32 count) { return (u32)(b->value >> (b->count - count)); }

static inline int skip(struct bits *b, u32 count)
{
    b->count -= count;
    b->value &= ((u64)1 << b->count) - 1;
    if (b->count < b->padding) return 0;
    if (b->count < 16) fill(b);
    return 1;
}

/* `symbol << 4 | length` by the next 15 bits of the stream. */
static int codes_of(const u8 *lengths, u16 *codes)
{
    u32 at = 0;
    for (u32 length = 1; length <= LONGEST; length++)
        for (u32 symbol = 0; symbol < 2 * TABLE; symbol++) {
            if ((lengths[symbol / 2] >> (symbol & 1) * 4 & 15) != length) continue;
            u32 places = 1u << (LONGEST - length);
            if (at + places > 1u << LONGEST) return 0;
            for (u32 i = 0; i < places; i++) codes[at++] = (u16)(symbol << 4 | length);
        }
    return at == 1u << LONGEST;
}

static int huffman(const u8 *in, i64 length_in, u8 *out, i64 size)
{
    u16 codes[1 << LONGEST];
    const u8 *p = in, *end = in + length_in;
    u8 *o = out, *stop = out + size;
    while (o < stop) {
        if (end - p < TABLE || !codes_of(p, codes)) return DAMAGED;
        struct bits b = {p + TABLE, end, 0, 0, 0};
        fill(&b);
        fill(&b);
        u8 *pause = stop - o > BLOCK ? o + BLOCK : stop;
        while (o < pause) {
            u32 entry = codes[peek(&b, LONGEST)], symbol = entry >> 4;
            if (!skip(&b, entry & 15)) return DAMAGED;
            if (symbol < 256) {
                *o++ = (u8)symbol;
                continue;
            }
            u32 extra = (symbol - 256) >> 4;
            u64 length = symbol & 15;
            if (length == 15 && !long_length(&b.at, end, 15, &length)) return DAMAGED;
            length += MIN_MATCH;
            u64 distance = ((u64)1 << extra) + peek(&b, extra);
            if (!skip(&b, extra) || distance > (u64)(o - out) || length > (u64)(stop - o)) return DAMAGED;
            if ((u64)(stop - o) - length >= WIDE) copy_wide(o, distance, length);
            else copy_exactly(o, distance, length);
            o += length;
        }
        p = b.at;
    }
    return DECODED;
}

/* -- LZNT1 */

enum { CHUNK = 4096, SIGNATURE = 3 };

/* One compressed chunk: its length, or -1 for damage. `room` is that of the whole output. */
static i64 chunk(const u8 *p, const u8 *end, u8 *out, i64 room)
{
    u8 *o = out, *stop = out + (room < CHUNK ? room : CHUNK);
    while (p < end) {
        u32 flags = *p++;
        for (int bit = 0; bit < 8 && p < end; bit++) {
            if (!(flags >> bit & 1)) {
                if (o == stop) return -1;
                *o++ = *p++;
                continue;
            }
            if (end - p < 2 || o == out) return -1;
            u32 word = get16(p), distance_bits = 4;
            p += 2;
            while ((o - out - 1) >> distance_bits) distance_bits++;
            u32 length_bits = 16 - distance_bits;
            u64 length = (word & ((1u << length_bits) - 1)) + MIN_MATCH, distance = (word >> length_bits) + 1;
            if (distance > (u64)(o - out) || length > (u64)(stop - o)) return -1;
            copy_exactly(o, distance, length);
            o += length;
        }
    }
    return o - out;
}

static int lznt1(const u8 *in, i64 length_in, u8 *out, i64 size)
{
    const u8 *p = in, *end = in + length_in;
    i64 done = 0;
    while (p < end) {
        if (end - p < 2) return DAMAGED;
        u32 header = get16(p);
        if (!header) break;
        i64 length = (header & 0xFFF) + 1, made = length;
        if ((header >> 12 & 7) != SIGNATURE || done % CHUNK || end - p - 2 < length) return DAMAGED;
        p += 2;
        if (header & 0x8000) {
            made = chunk(p, p + length, out + done, size - done);
            if (made < 0) return DAMAGED;
        } else {
            if (length > size - done) return DAMAGED;
            memcpy(out + done, p, (size_t)length);
        }
        done += made;
        p += length;
    }
    return done == size ? DECODED : DAMAGED;
}

/* Decode `length` bytes of `in` to exactly `size` bytes of `out`. After damage its contents are undefined. */
EXPORT int lb_decompress(int format, const u8 *in, i64 length, u8 *out, i64 size)
{
    if (length < 0 || size < 0) return DAMAGED;
    switch (format) {
    case LZNT1: return lznt1(in, length, out, size);
    case XPRESS: return xpress(in, length, out, size);
    case XPRESS_HUFF: return huffman(in, length, out, size);
    default: return DAMAGED;
    }
}
