/* Shared definitions of all sources of the library. C11, no Python.h: ctypes calls the exported functions. */
#ifndef LASTBRANCH_H
#define LASTBRANCH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

/* Little-endian values at any address. Compilers make a single load of each function. */
static inline u16 get16(const u8 *p) { return (u16)(p[0] | p[1] << 8); }
static inline u32 get32(const u8 *p) { return (u32)get16(p) | (u32)get16(p + 2) << 16; }
static inline u64 get64(const u8 *p) { return (u64)get32(p) | (u64)get32(p + 4) << 32; }

/* Item i of a column with any distance between items. */
static inline u64 at_stride(const u8 *base, i64 stride, i64 i)
{
    u64 value;
    memcpy(&value, base + stride * i, 8);
    return value;
}

/* The type of a branch by its flag word (lbr/words.py): perf's branch types, from 16 on its new types. */
static inline u8 branch_type(u64 flags)
{
    u64 type = flags >> 20 & 15;
    return (u8)(type == 15 ? 16 + (flags >> 26 & 15) : type);
}

#endif
