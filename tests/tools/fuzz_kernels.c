/* Runs the functions of the compiled library on mutated input, without Python. tests/tools/fuzz_kernels.py builds and
 * starts it, with ASan and UBSan.
 *
 *     fuzz_kernels SECONDS|-ROUNDS SEED FOLDER    mutate the files KERNEL.* of FOLDER, for so long or so many rounds each
 *     fuzz_kernels KERNEL FILE                    run one input
 *
 * A kernel has a row in `kernels`: a function that calls it as its Python wrapper does, on the bytes of one input. The
 * function ensures all that the wrapper ensures about its arguments. Buffers are as large as they are said to be, so
 * that ASan sees each access past their end. An input that fails is written to KERNEL.failed.
 *
 * The program prints a digest of each kernel's results: as many rounds from one seed print the same on every platform.
 * make_wheels.py beside this file compares the libraries of other platforms with this machine's in this way. */
#include "lastbranch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
void __sanitizer_set_death_callback(void (*)(void));
#else
#define __sanitizer_set_death_callback(function) ((void)(function))
#endif

struct input {
    const u8 *at;
    size_t left;
};

static const struct kernel *running;
static struct {
    u8 *bytes;
    size_t size;
} tried;

static const char *name_of(const struct kernel *kernel);

static void keep(void)
{
    char name[64];
    snprintf(name, sizeof name, "%s.failed", name_of(running));
    FILE *file = fopen(name, "wb");
    if (file) fwrite(tried.bytes, 1, tried.size, file), fclose(file);
    fprintf(stderr, "the input is in %s\n", name);
}

/* The next `size` bytes as a number; what is missing is 0. */
static u64 take(struct input *in, size_t size)
{
    u64 value = 0;
    for (size_t i = 0; i < size && in->left; i++, in->at++, in->left--) value |= (u64)*in->at << 8 * i;
    return value;
}

static u64 digest;

/* Part of what a kernel returned. */
static void seen(const void *bytes, i64 size)
{
    for (i64 i = 0; i < size; i++) digest = (digest ^ ((const u8 *)bytes)[i]) * 0x100000001B3u;
}

static void *block(size_t size)
{
    void *found = malloc(size ? size : 1);
    if (!found) abort();
    return found;
}

static void expect(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "expected: %s\n", what);
    keep();
    exit(1);
}

/* -- count_stacks.c: batches of stacks; whatever is counted comes out again */

void *lb_counter_new(u64 seed, int with_branches, int with_ranges, int with_details);
void lb_counter_free(void *c);
i64 lb_counter_add(void *c, const i64 *scope, const i64 *first, const i64 *depth, i64 samples, const u8 *from,
                   i64 from_step, i64 from_stride, const u8 *to, i64 to_step, i64 to_stride, const u8 *flags,
                   i64 flags_step, i64 flags_stride);
int lb_counter_full(const void *c, i64 depth);
i64 lb_counter_rows(const void *c, int ranges);
i64 lb_counter_take(const void *c, int ranges, i64 room, i64 *scope, u64 *a, u64 *b, i64 *values);
i64 lb_counter_broken(const void *c);
void lb_counter_clear(void *c);

static void taken(const void *c, int ranges, int details, i64 expected)
{
    i64 room = lb_counter_rows(c, ranges), sum = 0, columns = !ranges && details ? 9 : 3;
    i64 *scope = block((size_t)room * 8), *values = block((size_t)(room * columns) * 8);
    u64 *a = block((size_t)room * 8), *b = block((size_t)room * 8);
    i64 rows = lb_counter_take(c, ranges, room, scope, a, b, values);
    expect(rows <= room, "no more rows than said");
    for (i64 i = 0; i < rows; i++) sum += values[i];
    expect(sum == expected, ranges ? "all ranges are counted" : "all branches are counted");
    seen(scope, rows * 8), seen(a, rows * 8), seen(b, rows * 8);
    for (i64 k = 0; k < columns; k++) seen(values + k * room, rows * 8);
    free(scope), free(values), free(a), free(b);
}

static int count_stacks(struct input in)
{
    u64 options = take(&in, 1), seed = take(&in, 8);
    int branches = (int)(options & 1), ranges = !branches || options & 2, details = !!(options & 4),
        separate = !!(options & 8);
    int records = !separate && options & 16; /* each stack begins after a word that is no entry */
    void *c = lb_counter_new(seed, branches, ranges, details);
    if (!c) abort();
    i64 counted = 0, pairs = 0;
    int whole = 1;
    while (in.left && whole) {
        i64 samples = (i64)take(&in, 1), entries = 0;
        i64 *scope = block((size_t)samples * 8), *depth = block((size_t)samples * 8),
            *first = block((size_t)samples * 8);
        for (i64 s = 0; s < samples; s++) {
            u64 head = take(&in, 1);
            scope[s] = (i64)(head & 7) - 1;
            depth[s] = (i64)(head >> 3);
            first[s] = records ? 3 * entries + s + 1 : entries;
            entries += depth[s];
        }
        u64 *words = block((size_t)(3 * entries + records * samples) * 8);
        i64 stride = separate ? 8 : 24, step = records ? 8 : stride, column = separate ? entries : 1;
        for (i64 s = 0; s < samples; s++)
            for (i64 i = 0; i < depth[s]; i++)
                for (i64 k = 0; k < 3; k++)
                    words[(first[s] * step + i * stride) / 8 + k * column] = take(&in, k == 2 ? 2 : 8);
        const u8 *from = (const u8 *)words, *to = (const u8 *)(words + column),
                 *flags = (const u8 *)(words + 2 * column);
        i64 done =
            lb_counter_add(c, scope, first, depth, samples, from, step, stride, to, step, stride, flags, step, stride);
        expect(done >= 0 && done <= samples, "stacks are counted or not");
        whole = done == samples;
        expect(whole || !lb_counter_full(c, depth[done]), "there is room for few rows");
        for (i64 s = 0; s < done; s++) counted += depth[s], pairs += depth[s] ? depth[s] - 1 : 0;
        free(scope), free(depth), free(first), free(words);
    }
    if (branches) taken(c, 0, details, counted);
    if (ranges) taken(c, 1, details, pairs - lb_counter_broken(c));
    lb_counter_clear(c);
    if (branches) taken(c, 0, details, 0);
    lb_counter_free(c);
    return whole;
}

/* -- count_bound.c: a batch whose pages are numbered and whose tables grow on demand; each stack is counted or left */

struct bound_table {
    u8 *rows;
    u32 *slots;
    u64 mask, used, room;
};
struct bound_counter {
    u64 seed;
    u64 *pages;
    u64 page_mask, pages_used, with_lines, stopped;
    struct bound_table table[3];
};
enum { PAGE_WORDS = 2, ROW_COUNT = 2 /* the first sum of a row of 64 bytes */ };

i64 lb_bound_count(struct bound_counter *c, i64 begin, const i64 *scope, const i64 *first, const i64 *depth,
                   const i64 *process, i64 stacks, const u8 *from, i64 from_step, i64 from_stride, const u8 *to,
                   i64 to_step, i64 to_stride, const u8 *flags, i64 flags_step, i64 flags_stride, u8 *left);
i64 lb_bound_pages(struct bound_counter *c, i64 begin, const i64 *scope, const i64 *first, const i64 *depth, i64 stacks,
                   const u8 *from, i64 from_step, i64 from_stride, const u8 *to, i64 to_step, i64 to_stride,
                   i64 *place);
void lb_bound_index(struct bound_counter *c, int which);

static const size_t BOUND_ROW[3] = {64, 64, 16};

static void grow_bound(struct bound_counter *c, int which, u64 room)
{
    struct bound_table *t = &c->table[which];
    u8 *rows = block((size_t)room * BOUND_ROW[which]);
    if (t->used) memcpy(rows, t->rows, (size_t)t->used * BOUND_ROW[which]);
    free(t->rows), free(t->slots);
    *t = (struct bound_table){rows, block((size_t)(2 * room) * 4), 2 * room - 1, t->used, room};
    lb_bound_index(c, which);
}

static void new_bound_pages(struct bound_counter *c, u64 number)
{
    free(c->pages);
    c->pages = block((size_t)number * PAGE_WORDS * 8);
    memset(c->pages, 0, (size_t)number * PAGE_WORDS * 8);
    c->page_mask = number - 1;
    c->pages_used = 0;
}

static int count_bound(struct input in)
{
    struct bound_counter c = {.seed = take(&in, 8), .with_lines = take(&in, 1) & 1};
    i64 stacks = (i64)take(&in, 1), entries = 0, done = 0, counted = 0, sum = 0, number = 1;
    i64 *column[4]; /* scope, first, depth, process */
    for (int k = 0; k < 4; k++) column[k] = block((size_t)stacks * 8);
    for (i64 s = 0; s < stacks; s++) {
        u64 head = take(&in, 1);
        column[0][s] = (i64)(head & 3) - (head == 255);
        column[1][s] = entries;
        column[2][s] = head == 254 ? 1025 : (i64)(head >> 3);
        column[3][s] = (i64)(head & 1) - 1;
        entries += column[2][s];
    }
    u64 *words = block((size_t)(3 * entries) * 8);
    for (i64 i = 0; i < entries; i++) {
        for (int k = 0; k < 2; k++) words[3 * i + k] = (take(&in, 1) & 15) << 12 | (take(&in, 1) & 31);
        if ((words[3 * i] & 31) == 7) words[3 * i] <<= 40; /* mostly no address */
        u64 flags = take(&in, 3);
        words[3 * i + 2] = flags >> 16 == 1 ? flags : flags & ~(u64)12; /* few in a transaction */
    }
    const u8 *from = (const u8 *)words, *to = (const u8 *)(words + 1), *flags = (const u8 *)(words + 2);
    u8 *left = block((size_t)stacks);
    for (int k = 0; k < 3; k++) grow_bound(&c, k, 1024);
    new_bound_pages(&c, 4);
    while (done < stacks) {
        i64 before = done;
        done = lb_bound_count(&c, done, column[0], column[1], column[2], column[3], stacks, from, 24, 24, to, 24, 24,
                              flags, 24, 24, left);
        expect(done >= before && done <= stacks && (done == stacks) == !c.stopped, "it stops for a reason");
        if (c.stopped == 1) {
            i64 *place = block((size_t)(c.page_mask + 1) * 8);
            i64 found =
                lb_bound_pages(&c, done, column[0], column[1], column[2], stacks, from, 24, 24, to, 24, 24, place);
            for (i64 i = 0; i < found; i++) {
                i32 its = number % 5 ? (i32)number : 0; /* 0: of such pages no stack is counted */
                memcpy((u8 *)(c.pages + PAGE_WORDS * place[i]) + 8, &its, 4);
                number++;
            }
            free(place);
            if (!found) new_bound_pages(&c, 2 * (c.page_mask + 1));
        } else if (c.stopped) {
            for (int k = 0; k < 3; k++) grow_bound(&c, k, 2 * c.table[k].room);
        }
    }
    for (i64 s = 0; s < stacks; s++) counted += left[s] ? 0 : column[2][s];
    for (u64 i = 0; i < c.table[0].used; i++) sum += (i64)((u64 *)c.table[0].rows)[8 * i + ROW_COUNT];
    expect(sum == counted, "each entry of a stack that is not left is counted once");
    for (u64 i = 0; i < c.table[1].used; i++) sum -= (i64)((u64 *)c.table[1].rows)[8 * i + 2];
    expect(sum >= (i64)c.table[0].used, "a first target was taken");
    seen(left, stacks);
    for (int k = 0; k < 3; k++) {
        seen(&c.table[k].used, 8);
        free(c.table[k].rows), free(c.table[k].slots);
    }
    for (int k = 0; k < 4; k++) free(column[k]);
    free(words), free(left), free(c.pages);
    return counted > 0;
}

/* -- decompress.c: what decodes does so every time */

int lb_decompress(int format, const u8 *in, i64 length, u8 *out, i64 size);

static int decompress(struct input in)
{
    int format = (int)take(&in, 1) % 6, done;
    i64 size = (i64)take(&in, 2);
    u8 *outs[2];
    for (int i = 0; i < 2; i++) {
        outs[i] = block((size_t)size);
        memset(outs[i], i ? 0xAA : 0x55, (size_t)size);
        done = lb_decompress(format, in.at, (i64)in.left, outs[i], size);
    }
    expect(done || !memcmp(outs[0], outs[1], (size_t)size), "all of the output is written");
    if (!done) seen(outs[0], size);
    free(outs[0]), free(outs[1]);
    return !done;
}

/* -- compress.c: data, and the DEFLATE streams of its pieces, which need not be of them */

i64 lb_compress_xpress(const u8 *data, i64 size, i64 step, const u8 *packed, const i64 *packed_end, u8 *out, i64 room);

static int compress(struct input in)
{
    i64 step = 1 + (i64)take(&in, 2), size = (i64)take(&in, 2), cut = (i64)take(&in, 1), ends[1 << 16], pieces = 0,
        from = 0;
    size = size < (i64)in.left ? size : (i64)in.left;
    u8 *data = block((size_t)size);
    for (i64 i = 0; i < size; i++) data[i] = (u8)take(&in, 1);
    for (i64 begin = 0; begin < size; begin += step, pieces++) {
        i64 length = (i64)take(&in, 2), left = (i64)in.left - from;
        ends[pieces] = from += length < left ? length : left > 0 ? left : 0;
    }
    i64 left = (i64)in.left < from ? (i64)in.left : from;
    for (i64 i = 0; i < pieces; i++) ends[i] = ends[i] < left ? ends[i] : left;
    u8 *packed = block((size_t)left);
    if (left) memcpy(packed, in.at, (size_t)left);
    i64 room = size + size / 32 * 4 + 32;
    room -= cut < room ? cut : room;
    u8 *out = block((size_t)room);
    i64 done = lb_compress_xpress(data, size, step, packed, ends, out, room);
    expect(done <= room, "the stream fits");
    seen(out, done);
    free(data), free(packed), free(out);
    return done >= 0;
}

/* -- find_mappings.c: an index of any values, against a search without a memory of the last answer */

struct index {
    const u64 *slabs, *bounds, *rows;
    const i64 *row_last, *row_value;
    i64 slab_count, bound_count, row_count, moment_bits;
};
struct run {
    i64 end;
    u64 kernel_start;
    i64 side, space[2], moment[2];
};

int lb_find_mappings(const struct index *x, const struct run *runs, i64 run_count, const u8 *address, i64 stride,
                     i64 count, i64 *out);

int lb_module_addresses(const u8 *address, i64 stride, i64 count, const i64 *module, const u64 *bias, i64 mappings,
                        i64 *value, u64 *out);

static u64 *ascending(struct input *in, i64 count, u64 shift)
{
    u64 *values = block((size_t)count * 8), sum = 0;
    for (i64 i = 0; i < count; i++) values[i] = sum += take(in, 1) << shift;
    return values;
}

static int find_mappings(struct input in)
{
    i64 slabs = (i64)take(&in, 1) & 31, bounds = (i64)take(&in, 1) % 34 - 1, rows = (i64)take(&in, 1) & 31;
    i64 bits = (i64)(int8_t)take(&in, 1), run_count = (i64)take(&in, 1) & 15, count = (i64)take(&in, 1), end = 0;
    u64 *slab = ascending(&in, slabs, bounds < 0 ? 12 : 0), *bound = ascending(&in, bounds < 0 ? 0 : bounds, 12);
    u64 *row = ascending(&in, rows, 1), *addresses = block((size_t)count * 8);
    i64 *last = block((size_t)rows * 8), *value = block((size_t)rows * 8), *out = block((size_t)count * 8), one;
    struct run *runs = block((size_t)run_count * sizeof *runs);
    for (i64 i = 0; i < rows; i++) last[i] = (i64)take(&in, 1), value[i] = i;
    for (i64 i = 0; i < run_count; i++) {
        runs[i].end = end += (int8_t)take(&in, 1);
        runs[i].kernel_start = take(&in, 8);
        runs[i].side = (i64)take(&in, 1) & 3;
        for (int k = 0; k < 2; k++) runs[i].space[k] = (int8_t)take(&in, 1), runs[i].moment[k] = (i64)take(&in, 1);
    }
    for (i64 i = 0; i < count; i++) addresses[i] = take(&in, 3) << 4;
    struct index x = {slab, bound, row, last, value, slabs, bounds < 0 ? -1 : bounds, rows, bits};
    int done = lb_find_mappings(&x, runs, run_count, (const u8 *)addresses, 8, count, out);
    for (i64 k = 0, i = 0; !done && k < run_count; k++)
        for (; i < runs[k].end; i++) {
            struct run alone = runs[k];
            alone.end = 1;
            expect(!lb_find_mappings(&x, &alone, 1, (const u8 *)&addresses[i], 8, 1, &one), "one address is looked up");
            expect(one == out[i], "an answer does not depend on the one before");
            seen(&one, sizeof one);
        }
    u64 *placed = block((size_t)count * 8);
    int declined = done || lb_module_addresses((const u8 *)addresses, 8, count, last, row, rows - 1, out, placed);
    for (i64 i = 0; !declined && i < count; i++) seen(&out[i], sizeof out[i]), seen(&placed[i], sizeof placed[i]);
    free(placed);
    free(slab), free(bound), free(row), free(addresses), free(last), free(value), free(out), free(runs);
    return !done;
}

/* -- format_lists.c: rows inside the values and outside, and room for all of them or less */

i64 lb_format_hex_lists(const u64 *values, i64 count, const i64 *offsets, i64 rows, int quote, const u8 *comma,
                        i64 between, u8 *out, i64 room, i64 *ends);

static int format_lists(struct input in)
{
    int quote = (int)take(&in, 1) & 1;
    i64 between = 1 + quote, rows = (i64)take(&in, 1), room = (i64)take(&in, 2), at = 0;
    i64 *offsets = block((size_t)(rows + 1) * 8), *ends = block((size_t)rows * 8), count = 0;
    for (i64 i = 0; i <= rows; i++) offsets[i] = at += (int8_t)take(&in, 1);
    u64 *values = block(in.left / 8 * 8);
    for (; in.left >= 8; count++) values[count] = take(&in, 8);
    u8 *out = block((size_t)room);
    i64 length = lb_format_hex_lists(values, count, offsets, rows, quote, (const u8 *)", ", between, out, room, ends);
    expect(length <= room, "the text fits");
    for (i64 i = 0; i < rows && length >= 0; i++) {
        i64 from = i ? ends[i - 1] : 0, numbers = 0;
        for (i64 k = from; k < ends[i]; k++) numbers += out[k] == 'x';
        expect(out[from] == '[' && out[ends[i] - 1] == ']', "a list is in brackets");
        expect(numbers == offsets[i + 1] - offsets[i], "all numbers of a list are written");
    }
    seen(out, length);
    free(offsets), free(ends), free(values), free(out);
    return length > 0;
}

/* -- perf_records.c: the records of a block, then the samples among them */

enum { SAMPLE = 9 };
struct step { i32 kind, a, b; };

i64 lb_records_chase(const u64 *words, i64 length, int big_endian, i64 from, i64 *at, i64 *types, i64 room, i64 *rest);
int lb_samples_check(const u64 *words, i64 count, int big_endian, const i64 *at, i64 samples, i64 fixed,
                     const struct step *steps, i64 number, i64 time, i64 thread, i64 *found, u64 *threads, i64 *stack,
                     i64 *depths, u64 *heads);

static int perf_records(struct input in)
{
    int big_endian = (int)take(&in, 1) & 1;
    i64 room = 1 + (i64)take(&in, 1), fixed = (i64)(int8_t)take(&in, 1), time = (i64)(int8_t)take(&in, 1);
    i64 thread = (i64)(int8_t)take(&in, 1), number = (i64)take(&in, 1) & 7;
    struct step *steps = block((size_t)number * sizeof *steps);
    for (i64 i = 0; i < number; i++) {
        steps[i].kind = (int8_t)take(&in, 1);
        steps[i].a = (int8_t)take(&in, 1);
        steps[i].b = (int8_t)take(&in, 1);
    }
    i64 length = (i64)in.left, count = (length + 7) >> 3, samples = 0, rest = 0, before = -1;
    u64 *words = block((size_t)count * 8);
    memset(words, 0, (size_t)count * 8);
    memcpy(words, in.at, in.left);
    for (i64 i = 0; big_endian && i < count; i++) words[i] = __builtin_bswap64(words[i]); /* as Block has them */
    i64 *at = block((size_t)room * 8), *types = block((size_t)room * 8), *sampled = block((size_t)count * 8);
    do {
        i64 n = lb_records_chase(words, length, big_endian, rest, at, types, room, &rest);
        expect(n >= 0 && n <= room, "no more records than there is room for");
        for (i64 i = 0; i < n; i++) {
            expect(at[i] > before && at[i] < count, "records are in order");
            before = at[i];
            seen(&types[i], 8);
            if (types[i] == SAMPLE) sampled[samples++] = at[i];
        }
    } while (rest >= 0);
    u64 *threads = block((size_t)samples * 8);
    i64 *found = block(7 * 8), *stack = block((size_t)samples * 8), *depths = block((size_t)samples * 8), entries = 0;
    u64 *heads = block((size_t)(fixed < 0 ? 0 : 1 + fixed) * (size_t)samples * 8);
    int done = lb_samples_check(words, count, big_endian, sampled, samples, fixed, steps, number, time, thread, found,
                                threads, stack, depths, heads);
    expect(done || (found[0] >= 0 && found[0] <= samples && found[6] <= samples - found[0]),
           "as many as there are samples");
    expect(done || found[2] <= count, "branches are in the records");
    for (i64 i = 0; !done && i < samples; i++) {
        expect(stack[i] < 0 ? !depths[i] : stack[i] + depths[i] <= count, "a stack is in its record");
        entries += depths[i];
        for (i64 k = 0; stack[i] >= 0 && k <= fixed; k++)
            expect(heads[k * samples + i] == words[sampled[i] + k], "the fixed words are those of the record");
    }
    expect(done || entries == found[2], "all stacks have all branches");
    int took = !done && samples > found[0];
    if (!done) seen(found, 7 * 8);
    free(steps), free(words), free(at), free(types), free(sampled), free(threads), free(found), free(stack),
        free(depths);
    free(heads);
    return took;
}

/* -- branch_entries.c: records inside the bytes and outside, and room for all of them or less */

int lb_branch_entries(const u8 *raw, i64 bytes, const i64 *first, const i64 *count, const u8 *size, i64 records,
                      u64 *out, i64 room);
void lb_info_flags(const u64 *info, i64 count, const u64 *types, u64 *flags);

static int branch_entries(struct input in)
{
    i64 records = (i64)take(&in, 1), room = (i64)take(&in, 2);
    i64 *first = block((size_t)records * 8), *count = block((size_t)records * 8);
    u8 *size = block((size_t)records);
    u64 *out = block((size_t)room * 24), *flags = block((size_t)room * 8), types[16];
    for (i64 r = 0; r < records; r++) {
        size[r] = (u8)take(&in, 1);
        u64 begin = take(&in, 2);
        first[r] = (i64)(begin << (take(&in, 1) & 63)), count[r] = (int8_t)take(&in, 1);
    }
    for (u64 i = 0; i < 16; i++) types[i] = i << 20;
    u8 *raw = block(in.left); /* as large as it is said to be */
    if (in.left) memcpy(raw, in.at, in.left);
    int done = lb_branch_entries(raw, (i64)in.left, first, count, size, records, out, room);
    for (i64 r = 0, at = 0; !done && r < records; at += count[r++])
        for (i64 i = 0; i < count[r]; i++)
            expect((u8)out[at + i] == raw[first[r] + 3 * i * size[r]], "entries follow each other");
    if (!done) {
        lb_info_flags(out + 2 * room, room, types, flags);
        for (i64 i = 0; i < room; i++)
            expect(!(flags[i] & 3) == !out[2 * room + i], "a prediction, unless nothing is known");
        seen(out, room * 24), seen(flags, room * 8);
    }
    free(first), free(count), free(size), free(out), free(flags), free(raw);
    return !done;
}

/* -- runs.c: ranges inside the values and outside, and room for all of them or less */

int lb_take_runs(const u8 *values, i64 count, i64 size, const i64 *first, const i64 *length, i64 number, u8 *out,
                 i64 room);

static int runs(struct input in)
{
    i64 size = 1 + (i64)(take(&in, 1) & 31), number = (i64)take(&in, 1), room = (i64)take(&in, 2), sum = 0;
    i64 *first = block((size_t)number * 8), *length = block((size_t)number * 8);
    for (i64 i = 0; i < number; i++) {
        u64 far = take(&in, 1) == 0xFF; /* anything, else what may be inside */
        first[i] = (i64)take(&in, far ? 8 : 1);
        length[i] = (i64)take(&in, far ? 8 : 1);
    }
    i64 count = (i64)in.left / size;
    u8 *values = block((size_t)(count * size)), *out = block((size_t)(room * size));
    memcpy(values, in.at, (size_t)(count * size));
    int done = lb_take_runs(values, count, size, first, length, number, out, room);
    for (i64 i = 0; i < number && !done; sum += length[i++])
        expect(!length[i] || !memcmp(out + sum * size, values + first[i] * size, (size_t)(length[i] * size)),
               "runs are copied");
    if (!done) seen(out, sum * size);
    free(first), free(length), free(values), free(out);
    return !done;
}

/* -- walk_events.c: chains of events, against a walk of one buffer after the other */

struct tables {
    const u8 *kinds, *shifts, *early;
    const u64 *no_ids;
    const i64 *header_bytes, *message_bytes;
    size_t message;
};
struct columns {
    i64 *at;
    u64 *head;
    u8 *header;
    i64 *size;
    i32 *buffer;
    u64 *time, *ids;
};

int lb_walk_events(const struct tables *t, const u8 *words, i64 number, const i64 *first, const i64 *end,
                   const i64 *limit, i64 buffers, u16 *lengths, i64 scratch, const struct columns *out, i64 room,
                   i64 *count, i64 *stop, i64 *state);

static int walk_events(struct input in)
{
    static u8 kinds[1 << 16];
    static const u8 shifts[256] = {[2] = 32}, early[256] = {[1] = 1};
    static const u64 no_ids[256];
    static const i64 least[256];
    const struct tables tables = {kinds, shifts, early, no_ids, least, least, 3};
    for (int i = 0; i < 1 << 14; i++) kinds[0xC000 | i] = (u8)(1 + i % 3); /* 1, 3: size in the low bits; 2: above */
    i64 buffers = (i64)take(&in, 1) % 40, scratch = (i64)take(&in, 1) * 16, most = 0;
    i64 *ends = block(8 * 4 * (size_t)buffers), *first = ends + buffers, *count = first + buffers,
        *stop = count + buffers;
    for (i64 i = 0; i < buffers; i++) {
        first[i] = (int16_t)take(&in, 2), ends[i] = (int16_t)take(&in, 2);
        if (first[i] < ends[i]) most += ends[i] - first[i];
    }
    i64 number = (i64)(in.left / 8), state[3] = {0};
    u8 *words = block((size_t)number * 8);
    if (number) memcpy(words, in.at, (size_t)number * 8);
    u16 *lengths = block((size_t)scratch * 2);
    for (i64 room = 0, done = 0; !done && state[0] < buffers && room <= 2 * most; room = 2 * room + 1) {
        struct columns out = {block((size_t)room * 8), block((size_t)room * 8), block((size_t)room),
                              block((size_t)room * 8), block((size_t)room * 4), block((size_t)room * 8),
                              block((size_t)room * 8)};
        i64 from = state[0], before = state[1] = 0;
        done = lb_walk_events(&tables, words, number, first, ends, ends, buffers, lengths, scratch, &out, room, count,
                              stop, state);
        for (i64 i = from; !done && i < state[0]; i++) {
            i64 at = first[i], found = 0;
            for (; at < ends[i]; found++) {
                u64 head, second;
                memcpy(&head, words + at * 8, 8);
                u32 kind = kinds[head >> 16 & 0xFFFF];
                i64 size = kind ? (i64)(((head >> shifts[kind] & 0xFFFF) + 7) >> 3) : 0;
                if (!size || size > ends[i] - at) break;
                memcpy(&second, words + at * 8 + 8, 8);
                i64 row = before + found;
                expect(row < state[1] && out.at[row] == at && out.head[row] == head, "events are in their order");
                expect(out.header[row] == kind && out.buffer[row] == i && out.ids[row] == second,
                       "columns are of their event");
                at += size;
            }
            expect(found == count[i], "all events of a buffer are found");
            before += found;
        }
        expect(done || before == state[1], "the number of all events");
        i64 bytes = done ? 0 : state[1] * 8;
        seen(out.at, bytes), seen(out.head, bytes), seen(out.header, bytes / 8), seen(out.size, bytes);
        seen(out.buffer, bytes / 2), seen(out.time, bytes), seen(out.ids, bytes);
        free(out.at), free(out.head), free(out.header), free(out.size), free(out.buffer), free(out.time), free(out.ids);
    }
    int took = buffers && state[0] == buffers;
    free(words), free(lengths), free(ends);
    return took;
}

/* -- branch_kinds.c and call_stacks.c: types of the entries of a batch, then its call stacks, against a plain machine */

void *lb_sites_new(u64 seed);
void lb_sites_free(void *t);
void lb_sites_learn(void *t, const i64 *scope, const u64 *source, const u8 *value, i64 count);
i64 lb_sites_kinds(void *t, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride,
                   const u8 *flags, i64 flags_stride, u8 *kind, i64 *fresh, i64 *pending);
i64 lb_sites_resolve(const void *t, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride,
                     u8 *kind, i64 *hidden);
i64 lb_call_stacks(const u64 *ip, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to,
                   i64 to_stride, u8 *kind, const u8 *action, int direct, u64 *frame, i64 *bounds);

enum { CALL = 5 };

/* How many frames lie open after the entries, from the oldest (the last) on. */
static i64 open_frames(const u8 *kind, const u8 *action, const u64 *from, const u64 *to, i64 entries, u8 *handler)
{
    i64 depth = 0;
    for (i64 i = entries - 1; i >= 0; i--) {
        int step = kind[i] == CALL && to[i] - from[i] == 5 ? 0 : action[kind[i]];
        i64 enclosing = depth;
        while (enclosing && !handler[enclosing - 1]) enclosing--;
        if (step == 1 || step == 3) handler[depth++] = step == 3;
        if (step == 2 && depth > enclosing) depth--;
        if (step == 4 && enclosing) depth = enclosing - 1;
    }
    return depth;
}

static int call_stacks(struct input in)
{
    u8 action[256];
    for (int i = 0; i < 256; i++) action[i] = (u8)(i % 7 < 5 ? i % 7 : 0);
    void *sites = lb_sites_new(take(&in, 8));
    if (!sites) abort();
    int took = 0;
    while (in.left) {
        i64 samples = (i64)take(&in, 1), entries = 0;
        i64 *scope = block((size_t)samples * 8), *offsets = block((size_t)(samples + 1) * 8);
        u64 *ip = block((size_t)samples * 8);
        offsets[0] = 0;
        for (i64 s = 0; s < samples; s++) {
            u64 head = take(&in, 1);
            scope[s] = (i64)(head & 7) - (head == 7);
            ip[s] = head & 1;
            offsets[s + 1] = entries += (i64)(head >> 3);
        }
        u64 *from = block((size_t)entries * 8), *to = block((size_t)entries * 8), *flags = block((size_t)entries * 8);
        for (i64 i = 0; i < entries; i++)
            from[i] = take(&in, 1) * 0x100001, to[i] = from[i] + take(&in, 1), flags[i] = take(&in, 1) << 20;
        u8 *kind = block((size_t)entries), *known = block((size_t)entries), *handler = block((size_t)entries);
        i64 *fresh = block((size_t)entries * 8), *pending = block(8), *owner = block((size_t)entries * 8);
        u64 *source = block((size_t)entries * 8), *frame = block((size_t)(entries + samples) * 8);
        i64 *bounds = block((size_t)(samples + 1) * 8);
        i64 new = lb_sites_kinds(sites, scope, offsets, samples, (u8 *)from, 8, (u8 *)flags, 8, kind, fresh, pending);
        for (i64 i = 0, s = 0; i < new; i++) {
            while (fresh[i] >= offsets[s + 1]) s++;
            owner[i] = scope[s], source[i] = from[fresh[i]], known[i] = (u8)(1 + source[i] % 40 * 8);
        }
        if (new >= 0) {
            took = 1;
            lb_sites_learn(sites, owner, source, known, new);
            i64 *hidden = block((size_t)*pending * 8);
            i64 left = lb_sites_resolve(sites, scope, offsets, samples, (u8 *)from, 8, kind, hidden);
            expect(left >= 0 && left <= *pending, "as many hidden entries as were pending");
            free(hidden);
            memcpy(known, kind, (size_t)entries);
            i64 n = lb_call_stacks(ip, offsets, samples, (u8 *)from, 8, (u8 *)to, 8, kind, action, CALL, frame, bounds);
            expect(n == bounds[samples] && n <= entries + samples, "all frames are in a stack");
            seen(kind, entries), seen(frame, n * 8), seen(bounds, (samples + 1) * 8);
            for (i64 s = 0; s < samples; s++) {
                i64 first = offsets[s], size = offsets[s + 1] - first, leaf = ip[s] || (size && to[first]);
                expect(bounds[s + 1] - bounds[s] - leaf
                           == open_frames(known + first, action, from + first, to + first, size, handler),
                       "as many callers as a machine finds");
            }
        }
        free(scope), free(offsets), free(ip), free(from), free(to), free(flags), free(kind), free(known), free(handler);
        free(fresh), free(pending), free(owner), free(source), free(frame), free(bounds);
    }
    lb_sites_free(sites);
    return took;
}

/* -- distinct_stacks.c: the first of the kind of each stack, against a comparison with all before it */

i64 lb_distinct_stacks(const i64 *key, i64 keys, const u8 *frame, i64 size, const i64 *offsets, i64 stacks, u64 seed,
                       i64 *rows, i64 *which);

static int distinct(struct input in)
{
    i64 size = (i64)take(&in, 1), keys = (i64)take(&in, 1) & 3, stacks = (i64)take(&in, 1), sum = 0;
    u64 seed = take(&in, 8);
    i64 *key = block((size_t)(keys * stacks) * 8), *offsets = block((size_t)(stacks + 1) * 8);
    i64 *rows = block((size_t)stacks * 8), *which = block((size_t)stacks * 8);
    for (i64 i = 0; i < keys * stacks; i++) key[i] = (i64)take(&in, 1) & 1;
    offsets[0] = 0;
    for (i64 i = 0; i < stacks; i++) offsets[i + 1] = sum += (i64)take(&in, 1) & 3;
    u8 *frame = block((size_t)(sum * size));
    for (i64 i = 0; i < sum * size; i++) frame[i] = (u8)take(&in, 1) & 1;
    i64 found = lb_distinct_stacks(key, keys, frame, size, offsets, stacks, seed, rows, which);
    for (i64 i = 0; i < stacks && found >= 0; i++) {
        i64 first = 0, length = offsets[i + 1] - offsets[i];
        for (; first < i; first++) {
            i64 k = 0;
            while (k < keys && key[k * stacks + i] == key[k * stacks + first]) k++;
            if (k == keys && offsets[first + 1] - offsets[first] == length
                && !memcmp(frame + offsets[i] * size, frame + offsets[first] * size, (size_t)(length * size)))
                break;
        }
        expect(which[i] >= 0 && which[i] < found && rows[which[i]] == first, "the first stack that is equal");
    }
    if (found >= 0) seen(rows, found * 8), seen(which, stacks * 8);
    free(key), free(offsets), free(rows), free(which), free(frame);
    return found >= 0;
}

/* -- sample_sums.c: the branches of stacks, in two batches, against a comparison with all others */

void *lb_branch_sums_new(u64 seed);
void lb_branch_sums_free(void *t);
i64 lb_branch_sums_add(void *t, const i64 *scope, const i64 *first, const i64 *depth, i64 samples, const u8 *from,
                       i64 from_step, i64 from_stride, const u8 *to, i64 to_step, i64 to_stride, const u8 *flags,
                       i64 flags_step, i64 flags_stride);
void lb_branch_sums_take(void *t, u64 *scope, u64 *from, u64 *to, u64 *values);

static int sample_sums(struct input in)
{
    enum { VALUES = 8, SAMPLES = 5, SQUARES, CROSSED };
    i64 samples = (i64)take(&in, 1) & 63, entries = 0;
    void *table = lb_branch_sums_new(take(&in, 8));
    if (!table) abort();
    i64 *scope = block((size_t)samples * 8), *first = block((size_t)samples * 8), *depth = block((size_t)samples * 8);
    for (i64 s = 0; s < samples; s++) {
        scope[s] = (i64)take(&in, 1) & 1;
        first[s] = entries;
        entries += depth[s] = (i64)take(&in, 1) & 63;
    }
    u64 *words = block((size_t)entries * 24), sums[4] = {0};
    for (i64 i = 0; i < 3 * entries; i++) words[i] = take(&in, 1) & (i % 3 == 2 ? 255 : 63);
    const u8 *base[3];
    for (int k = 0; k < 3; k++) base[k] = (const u8 *)(words + (entries > 0) * k);
    i64 rows = 0;
    for (i64 begin = 0, end = samples / 2;; begin = end, end = samples) {
        rows = lb_branch_sums_add(table, scope + begin, first + begin, depth + begin, end - begin, base[0], 24, 24,
                                  base[1], 24, 24, base[2], 24, 24);
        if (end == samples) break;
    }
    expect(rows >= 0 && rows <= entries, "a row has an entry");
    u64 *owner = block((size_t)rows * 8), *ends = block((size_t)rows * 16), *values = block((size_t)rows * VALUES * 8);
    lb_branch_sums_take(table, owner, ends, ends + rows, values);
    for (i64 r = 0; r < rows; r++) {
        u64 here = 0, all[4] = {0};
        for (i64 s = 0; s < samples; s++, here = 0) {
            for (i64 i = first[s]; i < first[s] + depth[s]; i++)
                here += (u64)scope[s] == owner[r] && words[3 * i] == ends[r] && words[3 * i + 1] == ends[rows + r];
            all[0] += here, all[1] += here > 0, all[2] += here * here, all[3] += here * (u64)depth[s];
        }
        expect(values[r] == all[0] && values[SAMPLES * rows + r] == all[1], "entries and samples of a branch");
        expect(values[SQUARES * rows + r] == all[2] && values[CROSSED * rows + r] == all[3],
               "sums over the samples of a branch");
        for (int k = 0; k < 4; k++) sums[k] += all[k];
        for (int k = 0; k < VALUES; k++) seen(&values[k * rows + r], 8);
    }
    expect(sums[0] == (u64)entries, "each entry is of one branch");
    lb_branch_sums_free(table);
    free(scope), free(first), free(depth), free(words), free(owner), free(ends), free(values);
    return entries > 0;
}

/* -- sum_stacks.c: sums, lowest and highest values of equal stacks of two batches, against a comparison with all others */

void *lb_sums_new(u64 seed, i64 keys, i64 sums, i64 lows, i64 highs);
void lb_sums_free(void *t);
int lb_sums_add(void *t, const u64 *key, const u64 *frame, const i64 *offsets, const u64 *value, i64 stacks);
void lb_sums_clear(void *t);
i64 lb_sums_rows(const void *t);
i64 lb_sums_frames(const void *t);
void lb_sums_read(const void *t, u64 *key, u64 *frame, i64 *offsets, u64 *value);

static int sum_stacks(struct input in)
{
    i64 keys = (i64)take(&in, 1) & 3, stacks[2] = {(i64)take(&in, 1)}, size = 0;
    stacks[1] = stacks[0] / 2;
    void *table = lb_sums_new(take(&in, 8), keys, 1, 1, 1);
    if (!table) abort();
    i64 *offsets = block((size_t)(stacks[0] + 1) * 8);
    u64 *key = block((size_t)(keys * stacks[0]) * 8), *value = block((size_t)stacks[0] * 24), all = 0, sum = 0;
    u64 low = ~(u64)0, high = 0, lowest = low, highest = 0;
    for (i64 i = 0; i < keys * stacks[0]; i++) key[i] = take(&in, 1) & 1;
    offsets[0] = (i64)take(&in, 1) - 1; /* -1: none begins there */
    for (i64 i = 0; i < stacks[0]; i++) offsets[i + 1] = offsets[i] + (i64)(take(&in, 1) & 3) - (take(&in, 1) == 255);
    for (i64 i = 0; i <= stacks[0]; i++) size = offsets[i] > size ? offsets[i] : size;
    u64 *frame = block((size_t)size * 8);
    for (i64 i = 0; i < size; i++) frame[i] = take(&in, 1) & 1;
    for (i64 i = 0; i < 3 * stacks[0]; i++) value[i] = take(&in, 1);
    int took = 0;
    for (int batch = 0; batch < 2; batch++) { /* the second is the beginning of the first, with other columns of keys */
        if (lb_sums_add(table, key, frame, offsets, value, stacks[batch])) continue;
        took++;
        for (i64 i = 0, n = stacks[batch]; i < n; i++) {
            all += value[i];
            low = value[n + i] < low ? value[n + i] : low;
            high = value[2 * n + i] > high ? value[2 * n + i] : high;
        }
    }
    i64 rows = lb_sums_rows(table), frames = lb_sums_frames(table);
    u64 *keys_out = block((size_t)(keys * rows) * 8), *frame_out = block((size_t)frames * 8),
        *sums = block((size_t)rows * 24);
    i64 *bounds = block((size_t)(rows + 1) * 8);
    lb_sums_read(table, keys_out, frame_out, bounds, sums);
    lb_sums_clear(table);
    expect(bounds[rows] == frames && !lb_sums_rows(table), "all frames are in a stack, and none is left");
    for (i64 i = 0; i < rows; i++) {
        sum += sums[i];
        lowest = sums[rows + i] < lowest ? sums[rows + i] : lowest;
        highest = sums[2 * rows + i] > highest ? sums[2 * rows + i] : highest;
        for (i64 other = 0; other < i; other++) {
            i64 k = 0, length = bounds[i + 1] - bounds[i];
            while (k < keys && keys_out[k * rows + i] == keys_out[k * rows + other]) k++;
            expect(k < keys || bounds[other + 1] - bounds[other] != length
                       || memcmp(frame_out + bounds[i], frame_out + bounds[other], (size_t)length * 8),
                   "no two stacks are equal");
        }
    }
    expect(sum == all && lowest == low && highest == high, "nothing is lost");
    seen(keys_out, keys * rows * 8), seen(frame_out, frames * 8), seen(sums, rows * 24), seen(bounds, (rows + 1) * 8);
    free(offsets), free(key), free(value), free(frame), free(keys_out), free(frame_out), free(sums), free(bounds);
    lb_sums_free(table);
    return took > 0;
}

/* -- row_numbers.c: the rows of two batches, against a comparison with all others */

void *lb_numbers_new(u64 seed, i64 columns);
void lb_numbers_free(void *t);
i64 lb_numbers_add(void *t, const u64 *column, i64 count, i64 *number, i64 *first);

static int row_numbers(struct input in)
{
    i64 columns = (i64)take(&in, 1) & 3, rows = (i64)take(&in, 1), half = rows / 2;
    void *table = lb_numbers_new(take(&in, 8), columns);
    if (!table) abort();
    u64 *value = block((size_t)(columns * rows) * 8);
    for (i64 i = 0; i < columns * rows; i++) value[i] = take(&in, 1) & 7;
    i64 *number = block((size_t)rows * 8), *first = block((size_t)rows * 8), known = 0;
    for (i64 begin = 0, end = half; begin < rows || end == half; begin = end, end = rows) {
        u64 *part = block((size_t)(columns * (end - begin)) * 8);
        i64 *mine = block((size_t)(end - begin) * 8);
        for (i64 k = 0; k < columns; k++)
            memcpy(part + k * (end - begin), value + k * rows + begin, (size_t)(end - begin) * 8);
        i64 new = lb_numbers_add(table, part, end - begin, number + begin, mine);
        expect(new >= 0 && new <= end - begin, "no more new numbers than rows");
        for (i64 i = 0; i < new; i++) first[known + i] = begin + mine[i];
        known += new;
        free(part), free(mine);
        if (end == rows) break;
    }
    for (i64 i = 0; i < rows; i++) {
        expect(number[i] >= 0 && number[i] < known && first[number[i]] <= i, "a row has a number that came by then");
        for (i64 other = 0; other < i; other++) {
            i64 k = 0;
            while (k < columns && value[k * rows + i] == value[k * rows + other]) k++;
            expect((k == columns) == (number[i] == number[other]), "equal rows have one number, others have others");
        }
    }
    seen(number, rows * 8), seen(first, known * 8);
    lb_numbers_free(table);
    free(value), free(number), free(first);
    return rows > 0;
}

/* -- virtual_unwinding.c: stacks of two batches, against stacks that are kept frame by frame */

void *lb_unwinder_new(u64 seed);
void lb_unwinder_free(void *t);
int lb_unwinder_add(void *t, const u64 *frame, i64 frames, const i64 *chains, const i64 *step, i64 entries,
                    const i64 *ends, i64 samples, const u8 *how, const u64 *source, const u64 *call, i64 steps);
i64 lb_unwinder_nodes(const void *t);
i64 lb_unwinder_events(const void *t);
void lb_unwinder_rows(const void *t, i64 *parent, u64 *address, i64 *state, i64 *step, i64 *after, i64 *times);

static int virtual_unwinding(struct input in)
{
    enum { STEPS = 16, DEEPEST = 1 << 11 };
    i64 samples = (i64)take(&in, 1) & 63, frames = 0, entries = 0;
    void *table = lb_unwinder_new(take(&in, 8));
    if (!table) abort();
    i64 *chains = block((size_t)(samples + 1) * 8), *ends = block((size_t)(samples + 1) * 8);
    chains[0] = ends[0] = 0;
    for (i64 s = 0; s < samples; s++) {
        u64 size = take(&in, 1), backwards = take(&in, 1) == 255;
        chains[s + 1] = frames += (i64)(size % 4) + (size < 250) - (i64)backwards;
        ends[s + 1] = entries += (i64)(take(&in, 1) & 31);
    }
    i64 most = 0;
    for (i64 s = 0; s <= samples; s++) most = chains[s] > most ? chains[s] : most;
    u64 *frame = block((size_t)most * 8), source[STEPS], call[STEPS];
    i64 *step = block((size_t)entries * 8);
    u8 how[STEPS];
    for (i64 i = 0; i < most; i++) frame[i] = take(&in, 1) & 3;
    for (i64 i = 0; i < STEPS; i++) {
        how[i] = (u8)take(&in, 1);
        source[i] = take(&in, 1) & 3, call[i] = take(&in, 1) & 3;
    }
    for (i64 i = 0; i < entries; i++) step[i] = (i64)(take(&in, 1) % (STEPS + (i == 77)));
    int took = !lb_unwinder_add(table, frame, most, chains, step, entries, ends, samples, how, source, call, STEPS);
    if (took)
        took = !lb_unwinder_add(table, frame, most, chains, step, entries, ends, samples / 2, how, source, call, STEPS);
    i64 nodes = lb_unwinder_nodes(table), events = lb_unwinder_events(table), all = 0;
    i64 *parent = block((size_t)nodes * 8), *row[4];
    u64 *address = block((size_t)nodes * 8), kept[DEEPEST];
    for (int k = 0; k < 4; k++) row[k] = block((size_t)events * 8);
    lb_unwinder_rows(table, parent, address, row[0], row[1], row[2], row[3]);
    for (i64 i = 0; i < events; i++) all += row[3][i];
    expect(all == (took ? entries + ends[samples / 2] : 0), "each step is counted");
    for (i64 s = 0; s < samples && took; s++) {
        i64 depth = 0, state = 0, lost = 0;
        for (i64 i = chains[s + 1]; i-- > chains[s];) {
            i64 node = 1;
            kept[depth++] = frame[i];
            while (node < nodes && (parent[node] != state >> 1 || address[node] != frame[i])) node++;
            expect(node < nodes, "each chain is in the tree");
            state = node << 1;
        }
        for (i64 i = ends[s]; i < ends[s + 1]; i++) {
            i64 event = 0;
            while (event < events && (row[0][event] != state || row[1][event] != step[i])) event++;
            expect(event < events, "each step has an event");
            state = row[2][event];
            int does = how[step[i]] & ~3;
            if (lost || (how[step[i]] & 3) == 2) lost = depth = 1;
            else if (does == 0 && depth > 1 && kept[depth - 2] == source[step[i]]) depth--;
            else if (does == 4) kept[depth - 1] = call[step[i]], depth++;
            kept[depth - 1] = source[step[i]];
            i64 node = state >> 1;
            expect((state & 1) == lost, "a stack is lost from the step on that cannot have been executed");
            for (i64 k = depth; k-- > 0; node = parent[node])
                expect(node && address[node] == kept[k], "the stack before a step");
            expect(!node, "no more frames than that");
        }
    }
    seen(parent, nodes * 8), seen(address, nodes * 8);
    for (int k = 0; k < 4; k++) seen(row[k], events * 8), free(row[k]);
    lb_unwinder_free(table);
    free(chains), free(ends), free(frame), free(step), free(parent), free(address);
    return took && entries > 0;
}

/* -- near_entries.c: entries with an end in the code, and ranges with a part in it */

void lb_near_entries(const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to, i64 to_stride,
                     const u64 *bound, i64 number, i64 *branch, i64 *branch_stack, i64 *range, i64 *range_stack,
                     i64 *found);

static int near_entries(struct input in)
{
    i64 number = (i64)take(&in, 1), samples = (i64)take(&in, 1), entries = 0;
    u64 at = 0, *bound = block((size_t)number * 8);
    for (i64 i = 0; i < number; i++) bound[i] = at += take(&in, 1) & 15;
    i64 *offsets = block((size_t)(samples + 1) * 8);
    offsets[0] = 0;
    for (i64 s = 0; s < samples; s++) offsets[s + 1] = entries += (i64)take(&in, 1) & 31;
    u64 *words = block((size_t)entries * 16);
    for (i64 i = 0; i < 2 * entries; i++) words[i] = take(&in, 1);
    i64 *rows[4], *found = block(16);
    for (int k = 0; k < 4; k++) rows[k] = block((size_t)entries * 8);
    const u8 *from = (const u8 *)words, *to = (const u8 *)(words + (entries > 0));
    lb_near_entries(offsets, samples, from, 16, to, 16, bound, number, rows[0], rows[1], rows[2], rows[3], found);
    seen(found, 16), seen(rows[0], found[0] * 8), seen(rows[1], found[0] * 8);
    seen(rows[2], found[1] * 8), seen(rows[3], found[1] * 8);
    i64 branches = 0;
    for (i64 i = 0; i < entries; i++) {
        int left = 0, arrived = 0;
        for (i64 k = 0; k < number; k++) left += bound[k] <= words[2 * i], arrived += bound[k] <= words[2 * i + 1];
        int near = (left | arrived) & 1;
        expect(!near || rows[0][branches] == i, "each entry with an end in the code");
        branches += near;
    }
    expect(found[0] == branches, "as many branches as have an end in the code");
    for (i64 i = 0; i < found[1]; i++)
        expect(rows[2][i] >= offsets[rows[3][i]] && rows[2][i] + 1 < offsets[rows[3][i] + 1],
               "a range is within a stack");
    free(bound), free(offsets), free(words), free(found);
    for (int k = 0; k < 4; k++) free(rows[k]);
    return branches > 0;
}

/* -- stationary.c: the distribution of a chain with a hub, against its balance; components, against who reaches whom */

void *lb_elimination_new(i64 states, const i64 *source, const i64 *target, i64 given, i64 last, i64 most);
void lb_elimination_free(void *e);
int lb_elimination_run(const void *e, const double *weight, double *found);
int lb_strong_components(const i64 *offsets, i64 states, const i64 *follows, i64 *found);

enum { CHAIN = 24 };

static int stationary(struct input in)
{
    i64 states = 1 + (i64)take(&in, 1) % (CHAIN - 1), hub = states - 1, given = 0, at = 0, most = (i64)take(&in, 2);
    double chance[CHAIN][CHAIN] = {0}, *weight = block(CHAIN * CHAIN * 8), *found = block((size_t)states * 8);
    i64 *source = block(CHAIN * CHAIN * 8), *target = block(CHAIN * CHAIN * 8), offsets[CHAIN + 1] = {0};
    int reaches[CHAIN][CHAIN] = {0};
    for (i64 i = 0; i < states; i++) {
        for (i64 k = (i64)take(&in, 1) & 7; k > 0; k--)
            chance[i][take(&in, 1) % (u64)states] = 1.0 + (double)take(&in, 1);
        if (i != hub) chance[i][hub] = chance[hub][i] = 1 + (double)take(&in, 1);
        chance[i][i] = 0;
        for (i64 k = 0; k < states; k++)
            if (chance[i][k] > 0) source[given] = i, target[given] = k, weight[given++] = chance[i][k] /= 10000;
        offsets[i + 1] = given;
    }
    i64 *follows = block((size_t)given * 8), *component = block((size_t)states * 8);
    memcpy(follows, target, (size_t)given * 8);
    for (i64 i = 0; i < given; i++) /* without the hub, or all would be one */
        if (source[i] == hub || target[i] == hub) follows[i] = source[i];
        else reaches[source[i]][target[i]] = 1;
    expect(!lb_strong_components(offsets, states, follows, component), "components are found");
    for (i64 k = 0; k < states; k++)
        for (i64 i = 0; i < states; i++)
            for (i64 j = 0; j < states; j++) reaches[i][j] |= reaches[i][k] & reaches[k][j];
    for (i64 i = 0; i < states; i++)
        for (i64 j = 0; j < i; j++)
            expect((component[i] == component[j]) == (reaches[i][j] && reaches[j][i]), "a component is mutual");
    seen(component, states * 8);
    void *plan = lb_elimination_new(states, source, target, given, hub, most);
    if (plan) {
        expect(!lb_elimination_run(plan, weight, found), "there is memory");
        for (i64 i = 0; i < states; i++) {
            double came = 0, went = 0;
            for (i64 k = 0; k < states; k++) came += found[k] * chance[k][i], went += found[i] * chance[i][k];
            expect(came - went < 1e-9 * (came + went) + 1e-300 && went - came < 1e-9 * (came + went) + 1e-300,
                   "balance");
        }
    }
    lb_elimination_free(plan);
    if (given > 1) { /* the same pair twice is refused */
        at = source[1], source[1] = source[0];
        i64 other = target[1];
        target[1] = target[0];
        expect(!lb_elimination_new(states, source, target, given, hub, 1 << 20), "each pair comes once");
        source[1] = at, target[1] = other;
    }
    free(weight), free(found), free(source), free(target), free(follows), free(component);
    return plan != NULL;
}

/* -- decode.c: pieces of code, with a disassembler that makes instructions of whatever it gets */

struct instruction {
    unsigned id;
    u64 address;
    u16 size;
    u8 bytes[24];
    char mnemonic[32], operands[160];
    void *detail;
};
struct branch {
    char name[14];
    u8 direct, other;
};

i64 lb_decode(_Bool (*decode)(size_t, const u8 **, size_t *, u64 *, struct instruction *), size_t handle,
              const struct branch *branches, i64 number, i64 unit, u64 mask, const u8 *code, const i64 *begin,
              const i64 *size, const i64 *span, const u64 *address, i64 pieces, i64 room, i64 *count, u64 *at,
              u8 *length, u8 *kind, u64 *target);

/* The first byte has the length, the name and the operands. */
static _Bool pretend(size_t handle, const u8 **code, size_t *size, u64 *address, struct instruction *found)
{
    static const char *names[] = {"jmp", "bnd jmp", "call", "mov", "b.eq", "", "lock xadd", "sysexitq"};
    static const char *operands[] = {"0x12f",   "rax, 0xffffffffffffffffff", "", "#0x", "7", ", ",
                                     "x0, #12", "9999999999999999999999"};
    u8 head = **code, length = head & 15;
    (void)handle;
    if (length > *size + (head == 255)) return 0; /* once more than there is */
    found->size = length;
    strcpy(found->mnemonic, names[head >> 4 & 7]);
    strcpy(found->operands, operands[(head >> 2 ^ head >> 5) & 7]);
    *code += length, *size -= length, *address += length;
    return 1;
}

static int decode(struct input in)
{
    static const struct branch branches[] = {{"jmp", 1, 2}, {"call", 3, 4}, {"b.eq", 5, 0}, {"sysexitq", 0, 6}};
    i64 pieces = (i64)take(&in, 1), unit = 1 + (i64)(take(&in, 1) & 3), lack = (i64)take(&in, 1) & 3, room = 0;
    i64 *begin = block((size_t)pieces * 8), *size = block((size_t)pieces * 8), *span = block((size_t)pieces * 8);
    i64 *count = block((size_t)pieces * 8), all = 0, sum = 0;
    u64 *address = block((size_t)pieces * 8);
    for (i64 p = 0; p < pieces; p++) {
        begin[p] = all, all += size[p] = (i64)take(&in, 1) & 63, span[p] = (i64)(int8_t)take(&in, 1),
        address[p] = take(&in, 8);
        room += size[p];
    }
    room -= lack < room ? lack : room;
    u8 *code = block((size_t)all), *length = block((size_t)room), *kind = block((size_t)room);
    u64 *at = block((size_t)room * 8), *target = block((size_t)room * 8);
    for (i64 i = 0; i < all; i++) code[i] = (u8)take(&in, 1);
    i64 n = lb_decode(pretend, 0, branches, 4, unit, ~(u64)0, code, begin, size, span, address, pieces, room, count, at,
                      length, kind, target);
    for (i64 p = 0, row = 0; n >= 0 && p < pieces; sum += count[p++]) {
        i64 done = 0;
        for (i64 i = 0; i < count[p]; done += length[row++], i++)
            expect(at[row] == address[p] + (u64)done && length[row] && done < span[p],
                   "instructions follow each other");
        expect(done >= span[p] || done == size[p], "all that begin in the span");
        expect(done <= size[p], "none is longer than the code");
    }
    expect(n < 0 || sum == n, "all instructions are in a piece");
    if (n >= 0) seen(count, pieces * 8), seen(at, n * 8), seen(length, n), seen(kind, n), seen(target, n * 8);
    free(begin), free(size), free(span), free(count), free(address), free(code), free(length), free(kind), free(at),
        free(target);
    return n > 0;
}

/* -- the table; a kernel returns whether it took the input, and did not decline */

static const struct kernel {
    const char *name;
    int (*run)(struct input);
} kernels[] = {
    {"branch_entries", branch_entries},
    {"call_stacks", call_stacks},
    {"count_bound", count_bound},
    {"count_stacks", count_stacks},
    {"compress", compress},
    {"decode", decode},
    {"decompress", decompress},
    {"format_lists", format_lists},
    {"find_mappings", find_mappings},
    {"distinct_stacks", distinct},
    {"near_entries", near_entries},
    {"perf_records", perf_records},
    {"runs", runs},
    {"row_numbers", row_numbers},
    {"sample_sums", sample_sums},
    {"stationary", stationary},
    {"sum_stacks", sum_stacks},
    {"virtual_unwinding", virtual_unwinding},
    {"walk_events", walk_events},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static const char *name_of(const struct kernel *kernel) { return kernel->name; }

/* -- mutation */

enum { SEEDS = 256, MOST = 1 << 16, ROUND = 64 };

static u64 state;
static struct {
    u8 *bytes;
    size_t size;
} seeds[SEEDS];

static u64 chance(u64 below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : 0;
}

static size_t load(const char *path, u8 **bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    *bytes = block(MOST);
    size_t size = fread(*bytes, 1, MOST, file);
    fclose(file);
    return size;
}

static size_t mutated(u8 *bytes, size_t size)
{
    static const u64 edges[] = {0,      1,      2,          0x7F,       0x80,         0xFF,
                                0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (u64)1 << 47, ~(u64)0};
    for (u64 n = 1 + chance(6); n; n--) {
        size_t at = (size_t)chance(size), length = (size_t)chance(size - at < 64 ? size - at : 64);
        switch (chance(7)) {
        case 0:
            if (size) bytes[at] ^= (u8)(1 << chance(8));
            break;
        case 1:
            if (size) bytes[at] = (u8)chance(256);
            break;
        case 2: {
            size_t width = (size_t)1 << chance(4);
            u64 edge = edges[chance(sizeof edges / sizeof *edges)];
            if (at + width <= size) memcpy(bytes + at, &edge, width);
            break;
        }
        case 3: size = at; break;
        case 4: memmove(bytes + at, bytes + at + length, size - at - length), size -= length; break;
        case 5:
            if (size + length <= MOST) memmove(bytes + at + length, bytes + at, size - at), size += length;
            break;
        default:
            if (size) memmove(bytes + at, bytes + chance(size - length + 1), length);
        }
    }
    return size;
}

static int run(const struct kernel *kernel, const u8 *bytes, size_t size)
{
    u8 *exact = block(size);
    if (size) memcpy(exact, bytes, size);
    running = kernel;
    tried.bytes = exact;
    tried.size = size;
    int took = kernel->run((struct input){exact, size});
    seen(&took, sizeof took);
    free(exact);
    return took;
}

static void fuzz(const struct kernel *kernel, double seconds, const char *folder)
{
    static u8 bytes[MOST];
    size_t known = 0;
    char path[4096];
    for (; known < SEEDS; known++) {
        snprintf(path, sizeof path, "%s/%s.%zu", folder, kernel->name, known);
        if (!(seeds[known].size = load(path, &seeds[known].bytes))) break;
        run(kernel, seeds[known].bytes, seeds[known].size);
    }
    clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    u64 inputs = 0, took = 0;
    double rounds = -seconds;
    do {
        for (int i = 0; i < ROUND; i++, inputs++) {
            size_t size;
            if (known && chance(16)) {
                size_t from = (size_t)chance(known);
                memcpy(bytes, seeds[from].bytes, size = seeds[from].size);
            } else {
                size = (size_t)chance(1024);
                for (size_t k = 0; k < size; k++) bytes[k] = (u8)chance(256);
            }
            took += (u64)run(kernel, bytes, mutated(bytes, size));
        }
    } while (seconds < 0 ? --rounds > 0 : clock() < end);
    printf("%s: %llu inputs, %llu of them taken, from %zu seeds, digest %016llx\n", kernel->name,
           (unsigned long long)inputs, (unsigned long long)took, known, (unsigned long long)digest);
    for (size_t i = 0; i < known; i++) free(seeds[i].bytes);
    if (took && known) return;
    fprintf(stderr, "%s takes no input: its seeds do not reach it\n", kernel->name);
    exit(1);
}

int main(int count, char **words)
{
    __sanitizer_set_death_callback(keep);
    for (int k = 0; count == 3 && k < KERNELS; k++)
        if (!strcmp(words[1], kernels[k].name)) {
            u8 *bytes = NULL;
            size_t size = load(words[2], &bytes);
            printf("%s\n", run(&kernels[k], bytes, size) ? "taken" : "declined");
            free(bytes);
            return 0;
        }
    if (count != 4) {
        fprintf(stderr, "fuzz_kernels SECONDS|-ROUNDS SEED FOLDER, or fuzz_kernels KERNEL FILE\n");
        return 2;
    }
    state = strtoull(words[2], NULL, 10) * 2 + 1;
    for (int k = 0; k < KERNELS; k++) fuzz(&kernels[k], strtod(words[1], NULL), words[3]);
    return 0;
}
