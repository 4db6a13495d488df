/* Instructions of many pieces of code: capstone decodes, tables classify. The same work as `Decoder` of isa.py, whose
 * library and handle are passed in: cs_disasm_iter, as capstone.h of version 5 declares this function. */
#include "lastbranch.h"

enum { PLAIN = 0, UNDECODABLE = 255 }; /* branch types, as in isa.py */

struct instruction { /* capstone.h: struct cs_insn */
    unsigned id;
    u64 address;
    u16 size;
    u8 bytes[24];
    char mnemonic[32], operands[160];
    void *detail;
};

typedef _Bool (*disassemble)(size_t handle, const u8 **code, size_t *size, u64 *address, struct instruction *found);

/* A branch of the architecture: its type with a plain address as last operand, and with any other; PLAIN where there is
 * none. */
struct branch {
    char name[14];
    u8 direct, other;
};

/* Branches by a hash of their first bytes; `next` is 1 + the place of another one with the same. */
struct names { u8 head[256], next[256]; };

static inline u8 hashed(const char *name)
{
    u32 h = 0;
    for (int i = 0; i < 4 && name[i]; i++) h = h * 31 + (u8)name[i];
    return (u8)(h ^ h >> 8);
}

/* The number that a plain address begins with, which ends the operands: after the last ", ", without a '#'. */
static int address_in(const char *operands, u64 *target)
{
    const char *last = operands;
    for (const char *at = operands; *at; at++)
        if (at[0] == ',' && at[1] == ' ') last = at + 2;
    last += *last == '#';
    if (*last < '0' || *last > '9') return 0;
    u64 value = 0;
    if (last[0] == '0' && last[1] == 'x')
        for (last += 2;; last++) {
            char c = *last;
            if (c >= '0' && c <= '9') value = value << 4 | (u64)(c - '0');
            else if (c >= 'a' && c <= 'f') value = value << 4 | (u64)(c - 'a' + 10);
            else break;
        }
    else
        for (; *last >= '0' && *last <= '9'; last++) value = value * 10 + (u64)(*last - '0');
    *target = value;
    return 1;
}

static u8 classify(const struct names *names, const struct branch *branches, const struct instruction *found,
                   u64 *target)
{
    const char *name = found->mnemonic;
    for (const char *at = name; *at; at++)
        if (*at == ' ') name = at + 1; /* after prefixes: bnd, notrack, repz, lock */
    for (u32 number = names->head[hashed(name)]; number; number = names->next[number - 1]) {
        const struct branch *branch = &branches[number - 1];
        if (strcmp(name, branch->name)) continue;
        if (branch->direct && address_in(found->operands, target)) return branch->direct;
        return branch->other;
    }
    return PLAIN;
}

/* Decode `pieces` of code: piece p has the bytes begin[p] to begin[p] + size[p] of `code`, the first one at address[p].
 * Only instructions that begin in the first `span[p]` bytes count; `unit` bytes that cannot be decoded are an
 * UNDECODABLE instruction. `branches` has `number` rows, fewer than 256. `mask` is the mask of addresses.
 *
 * `count` gets how many instructions a piece has; `at` (their addresses), `length`, `kind` and `target` (of a direct
 * branch, else 0) have room for `room` of them. Returns the number of instructions, or -1 if there is no room for all. */
EXPORT i64 lb_decode(disassemble decode, size_t handle, const struct branch *branches, i64 number, i64 unit, u64 mask,
                     const u8 *code, const i64 *begin, const i64 *size, const i64 *span, const u64 *address, i64 pieces,
                     i64 room, i64 *count, u64 *at, u8 *length, u8 *kind, u64 *target)
{
    struct names names = {{0}, {0}};
    for (i64 i = 0; i < number; i++) {
        u8 place = hashed(branches[i].name);
        names.next[i] = names.head[place];
        names.head[place] = (u8)(i + 1);
    }
    i64 n = 0;
    struct instruction found;
    found.detail = NULL;
    for (i64 p = 0; p < pieces; p++) {
        i64 before = n, done = 0;
        while (done < size[p] && done < span[p]) {
            const u8 *place = code + begin[p] + done;
            size_t left = (size_t)(size[p] - done);
            u64 next = address[p] + (u64)done;
            if (n == room) return -1;
            at[n] = next;
            target[n] = 0;
            i64 taken = unit < size[p] - done ? unit : size[p] - done;
            kind[n] = UNDECODABLE;
            if (decode(handle, &place, &left, &next, &found) && found.size && found.size <= size[p] - done) {
                taken = found.size;
                kind[n] = classify(&names, branches, &found, &target[n]);
                target[n] &= mask;
            }
            length[n++] = (u8)taken;
            done += taken;
        }
        count[p] = n - before;
    }
    return n;
}
