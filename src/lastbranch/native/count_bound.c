/* Counts branches by module address, in tables that live as long as a recording is watched.
 *
 * Nothing is bound or moved afterwards, which is what costs most where many different branches come each second. An
 * address becomes the number of its page of a module, and the offset in it. Pages of an address space are looked up in
 * a hash table, which the caller fills; stacks with a page that it cannot number are left to the caller.
 *
 * A branch instruction has one row: its sums, its first recorded target, and the start of the straight line that first
 * led to the branch. Most branches have one target and one such line, so that an entry is one cache line. Other targets
 * and lines have rows in two more tables; the sums of the first target are the branch's sums less the sums of the other
 * targets.
 *
 * Memory latency decides the speed. So entries are counted in blocks, and each step asks for the memory of the next
 * one. Rows and tables belong to the caller; hashes are seeded. */
#include "lastbranch.h"

enum { BLOCK = 1024, PAGE_BITS = 12, TAG_SHIFT = 19, DECLINED_PAGE = 0, NEW_PAGE = -1, SEVERAL = 0xFFFF };
enum { ALL = 0, UNKNOWN_PAGE = 1, NO_ROOM = 2 };
enum { IN_TX_OR_ABORT = 12, KEY_BITS = 36, MOST_SCOPES = 1 << 27, SOON = 2, MOST_ASKED = 64 };
#define NOT_TAKEN (1ull << 33)
#define PLACE ((1u << TAG_SHIFT) - 1)

struct sums { u64 count, mispredicted, predicted, cycles, timed; };
struct from_row {
    u32 from, target, start;
    u8 type_low, type_high;
    u16 process;
    struct sums sums;
    u64 lines;
};
struct pair_row {
    u32 from, to, row;
    u8 type_low, type_high;
    u16 process;
    struct sums sums;
    u64 unused;
};
struct line_row {
    u32 start, end;
    u64 count;
};
struct page {
    u64 key;
    i32 number, used;
};

/* `slots` has 1 + the row of a key in its low bits, bits of the hash above; 0: free. */
struct table {
    void *rows;
    u32 *slots;
    u64 mask, used, room;
};
struct counter {
    u64 seed;
    struct page *pages;
    u64 page_mask, pages_used, with_lines, stopped;
    struct table froms, pairs, lines;
};

struct entry {
    u32 from, to, start, facts;
    u16 process;
};

static inline u64 hashed(u64 key, u64 seed)
{
    u64 h = (key ^ seed) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return h * 0xD6E8FEB86659FD93u >> 13;
}

static inline u32 tag_of(u64 hash) { return (u32)(hash >> 38) << TAG_SHIFT; }

/* The key of an address: scope and page in one word; 0 if the two do not fit, or if the address is none. */
static inline u64 key_of(i64 scope, u64 address)
{
    u64 top = address >> 47;
    if ((top && top != 0x1FFFF) || (u64)scope >= MOST_SCOPES) return 0;
    return (u64)(scope + 1) << KEY_BITS | (address >> PAGE_BITS & (((u64)1 << KEY_BITS) - 1));
}

/* The slot of a page: its own, or the free slot for the page. */
static inline struct page *page_of(const struct counter *c, u64 key)
{
    for (u64 at = hashed(key, c->seed);; at++) {
        struct page *p = &c->pages[at & c->page_mask];
        if (!p->used || p->key == key) return p;
    }
}

/* The places of stacks: stack s has `depth[s]` entries; column n of the entries begins `step[n]` times `first[s]` bytes
 * after `base[n]`, with `stride[n]` bytes from entry to entry. */
struct stacks {
    const i64 *scope, *first, *depth;
    const u8 *base[3];
    i64 step[3], stride[3];
};

/* Add the entries of stack s to a block. How many; -1: it is left to the caller, -2: a page is not known. */
static i64 translate(const struct counter *c, const struct stacks *k, i64 s, i64 process, struct entry *out)
{
    const i64 depth = k->depth[s], scope = k->scope[s], first = k->first[s];
    const u8 *column[3];
    const i64 stride[3] = {k->stride[0], k->stride[1], k->stride[2]};
    const u32 low = (1u << PAGE_BITS) - 1;
    const int with_lines = c->with_lines != 0;
    u64 last[2] = {~(u64)0, ~(u64)0};
    u32 base[2] = {0, 0};
    if (depth < 0 || depth > BLOCK || process < -1 || process + 1 >= SEVERAL) return -1;
    for (int n = 0; n < 3; n++) column[n] = k->base[n] + k->step[n] * first;
    for (i64 i = 0; i < depth; i++) {
        u64 flags = at_stride(column[2], stride[2], i);
        u32 compact[2];
        if (flags & (NOT_TAKEN | IN_TX_OR_ABORT)) return -1;
        for (int n = 0; n < 2; n++) {
            u64 address = at_stride(column[n], stride[n], i);
            if (address >> PAGE_BITS != last[n]) {
                u64 key = key_of(scope, address);
                if (!key) return -1;
                const struct page *p = page_of(c, key);
                if (!p->used || p->number == NEW_PAGE) return -2;
                if (p->number == DECLINED_PAGE) return -1;
                last[n] = address >> PAGE_BITS;
                base[n] = (u32)p->number << PAGE_BITS;
            }
            compact[n] = base[n] | ((u32)address & low);
        }
        out[i] = (struct entry){compact[0], compact[1], 0, (u32)flags, (u16)(process + 1)};
        if (i && with_lines) out[i - 1].start = compact[1];
    }
    return depth;
}

static inline void add(struct sums *sums, u32 facts)
{
    u32 cycles = facts >> 4 & 0xFFFF;
    sums->count++;
    sums->mispredicted += facts & 1;
    sums->predicted += facts >> 1 & 1;
    sums->cycles += cycles;
    sums->timed += cycles != 0;
}

static inline void note(u8 *low, u8 *high, u16 *process, const struct entry *e)
{
    u8 type = branch_type(e->facts);
    if (type < *low) *low = type;
    if (type > *high) *high = type;
    if (*process != e->process) *process = SEVERAL;
}

/* The row whose first eight bytes (four for `froms`) are this key, searched from the key's slot on; -1: the key is new,
 * and belongs to *at. */
static inline i64 found(const struct table *t, u64 hash, u64 key, size_t size, int narrow, u64 *at)
{
    u32 tag = tag_of(hash);
    for (u64 i = hash & t->mask;; i = (i + 1) & t->mask) {
        u32 slot = t->slots[i];
        if (!slot) {
            *at = i;
            return -1;
        }
        if ((slot & ~PLACE) != tag) continue;
        const u8 *row = (const u8 *)t->rows + ((slot & PLACE) - 1) * size;
        u64 there = 0;
        memcpy(&there, row, narrow ? 4 : 8);
        if (there == key) return (i64)(slot & PLACE) - 1;
    }
}

static inline i64 added(struct table *t, u64 hash, u64 at)
{
    i64 row = (i64)t->used++;
    t->slots[at] = tag_of(hash) | (u32)(row + 1);
    return row;
}

static inline void ask_for_row(const struct table *t, u64 hash, size_t size)
{
    u32 slot = t->slots[hash & t->mask];
    if (slot) __builtin_prefetch((const u8 *)t->rows + ((slot & PLACE) - 1) * size, 1);
}

static inline u64 both(u32 low, u32 high) { return (u64)high << 32 | low; }

struct later {
    u64 hash;
    u32 entry, row;
};

static void count(struct counter *c, const struct entry *entries, i64 number)
{
    static const i64 AHEAD = 32;
    u64 hash[BLOCK], at = 0;
    struct later pair[BLOCK], line[BLOCK];
    i64 pairs = 0, lines = 0;
    for (i64 i = 0; i < number; i++) {
        hash[i] = hashed(entries[i].from, c->seed);
        __builtin_prefetch(&c->froms.slots[hash[i] & c->froms.mask]);
    }
    for (i64 i = 0; i < AHEAD && i < number; i++) ask_for_row(&c->froms, hash[i], sizeof(struct from_row));
    for (i64 i = 0; i < number; i++) {
        const struct entry *e = &entries[i];
        if (i + AHEAD < number) ask_for_row(&c->froms, hash[i + AHEAD], sizeof(struct from_row));
        i64 place = found(&c->froms, hash[i], e->from, sizeof(struct from_row), 1, &at);
        if (place < 0) {
            place = added(&c->froms, hash[i], at);
            ((struct from_row *)c->froms.rows)[place] =
                (struct from_row){.from = e->from, .target = e->to, .type_low = 0xFF, .process = e->process};
        }
        struct from_row *row = (struct from_row *)c->froms.rows + place;
        add(&row->sums, e->facts);
        if (row->target == e->to) {
            note(&row->type_low, &row->type_high, &row->process, e);
        } else {
            u64 h = hashed(both(e->from, e->to), c->seed);
            pair[pairs++] = (struct later){h, (u32)i, (u32)place};
            __builtin_prefetch(&c->pairs.slots[h & c->pairs.mask]);
        }
        if (!e->start) continue;
        if (!row->start) row->start = e->start;
        if (row->start == e->start) {
            row->lines++;
        } else {
            u64 h = hashed(both(e->start, e->from), c->seed);
            line[lines++] = (struct later){h, (u32)i, 0};
            __builtin_prefetch(&c->lines.slots[h & c->lines.mask]);
        }
    }
    for (i64 i = 0; i < AHEAD && i < pairs; i++) ask_for_row(&c->pairs, pair[i].hash, sizeof(struct pair_row));
    for (i64 i = 0; i < pairs; i++) {
        const struct entry *e = &entries[pair[i].entry];
        if (i + AHEAD < pairs) ask_for_row(&c->pairs, pair[i + AHEAD].hash, sizeof(struct pair_row));
        i64 place = found(&c->pairs, pair[i].hash, both(e->from, e->to), sizeof(struct pair_row), 0, &at);
        if (place < 0) {
            place = added(&c->pairs, pair[i].hash, at);
            ((struct pair_row *)c->pairs.rows)[place] = (struct pair_row){
                .from = e->from, .to = e->to, .row = pair[i].row, .type_low = 0xFF, .process = e->process};
        }
        struct pair_row *row = (struct pair_row *)c->pairs.rows + place;
        add(&row->sums, e->facts);
        note(&row->type_low, &row->type_high, &row->process, e);
    }
    for (i64 i = 0; i < AHEAD && i < lines; i++) ask_for_row(&c->lines, line[i].hash, sizeof(struct line_row));
    for (i64 i = 0; i < lines; i++) {
        const struct entry *e = &entries[line[i].entry];
        if (i + AHEAD < lines) ask_for_row(&c->lines, line[i + AHEAD].hash, sizeof(struct line_row));
        i64 place = found(&c->lines, line[i].hash, both(e->start, e->from), sizeof(struct line_row), 0, &at);
        if (place < 0) {
            place = added(&c->lines, line[i].hash, at);
            ((struct line_row *)c->lines.rows)[place] = (struct line_row){e->start, e->from, 0};
        }
        ((struct line_row *)c->lines.rows)[place].count++;
    }
}

/* Ask for the entries of a stack: entries in place begin where no processor expects them. */
static inline void ask_for(const struct stacks *k, i64 s)
{
    const u8 *at = k->base[0] + k->step[0] * k->first[s];
    for (i64 bytes = k->stride[0] * (k->depth[s] < MOST_ASKED ? k->depth[s] : MOST_ASKED); bytes > 0;
         bytes -= 64, at += 64)
        __builtin_prefetch(at);
}

/* Whether a block of any entries has room. */
static int has_room(const struct counter *c)
{
    return c->froms.used + BLOCK <= c->froms.room && c->pairs.used + BLOCK <= c->pairs.room
        && c->lines.used + BLOCK <= c->lines.room;
}

/* Count the stacks from `begin` on, of which each entry is found as `lb_counter_add` finds it; `process` is -1 or the number
 * of each one's process. `left[s]` is set of those that are not counted here. How many are done; `stopped` says why not
 * all. */
EXPORT i64 lb_bound_count(struct counter *c, i64 begin, const i64 *scope, const i64 *first, const i64 *depth,
                          const i64 *process, i64 stacks, const u8 *from, i64 from_step, i64 from_stride, const u8 *to,
                          i64 to_step, i64 to_stride, const u8 *flags, i64 flags_step, i64 flags_stride, u8 *left)
{
    const struct stacks k = {scope,
                             first,
                             depth,
                             {from, to, flags},
                             {from_step, to_step, flags_step},
                             {from_stride, to_stride, flags_stride}};
    struct entry entries[BLOCK];
    i64 number = 0, s = begin;
    for (c->stopped = ALL; s < stacks; s++) {
        if (s + SOON < stacks) ask_for(&k, s + SOON);
        if (number >= BLOCK / 2 || (depth[s] > BLOCK / 2 && number)) {
            count(c, entries, number);
            number = 0;
        }
        if (!number && !has_room(c)) {
            c->stopped = NO_ROOM;
            return s;
        }
        i64 more = translate(c, &k, s, process[s], entries + number);
        if (more == -2) {
            c->stopped = UNKNOWN_PAGE;
            break;
        }
        left[s] = more < 0;
        number += more > 0 ? more : 0;
    }
    count(c, entries, number);
    return s;
}

/* Note the pages of the stacks from `begin` on that are not known, until half of the table is full: `place` gets where they
 * are in it. How many. */
EXPORT i64 lb_bound_pages(struct counter *c, i64 begin, const i64 *scope, const i64 *first, const i64 *depth,
                          i64 stacks, const u8 *from, i64 from_step, i64 from_stride, const u8 *to, i64 to_step,
                          i64 to_stride, i64 *place)
{
    const u8 *base[2] = {from, to};
    const i64 step[2] = {from_step, to_step}, stride[2] = {from_stride, to_stride};
    i64 number = 0;
    for (i64 s = begin; s < stacks; s++)
        for (i64 i = 0; i < 2 * depth[s]; i++) {
            u64 key = key_of(scope[s], at_stride(base[i & 1] + step[i & 1] * first[s], stride[i & 1], i / 2));
            struct page *p = key ? page_of(c, key) : NULL;
            if (!p || p->used) continue;
            if (c->pages_used * 2 > c->page_mask) return number;
            *p = (struct page){key, NEW_PAGE, 1};
            c->pages_used++;
            place[number++] = p - c->pages;
        }
    return number;
}

static void index_rows(struct table *t, u64 seed, size_t size, int narrow)
{
    memset(t->slots, 0, (t->mask + 1) * sizeof *t->slots);
    for (u64 row = 0; row < t->used; row++) {
        u64 key = 0;
        memcpy(&key, (const u8 *)t->rows + row * size, narrow ? 4 : 8);
        u64 hash = hashed(key, seed), at = hash & t->mask;
        while (t->slots[at]) at = (at + 1) & t->mask;
        t->slots[at] = tag_of(hash) | (u32)(row + 1);
    }
}

/* Make the slots of a table (0 froms, 1 pairs, 2 lines) anew for its rows. */
EXPORT void lb_bound_index(struct counter *c, int which)
{
    if (which == 0) index_rows(&c->froms, c->seed, sizeof(struct from_row), 1);
    if (which == 1) index_rows(&c->pairs, c->seed, sizeof(struct pair_row), 0);
    if (which == 2) index_rows(&c->lines, c->seed, sizeof(struct line_row), 0);
}
