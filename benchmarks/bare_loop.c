/* What the shipped kernels can do on this machine: read a perf.data, walk its records, count its stacks, and nothing else.
 * bench_counts.py compiles it with the sources of the library and runs it beside the commands.
 *
 *     bare_loop FILE [THREADS]
 *
 * FILE is as generate.py makes it: of this byte order, one event, its samples with ip, pid, time, period and branch stack.
 * THREADS (1 or 2) count blocks at the same time, each into tables of its own, which are not merged: there are few rows.
 * Prints one JSON object: what was counted, distinct rows of all tables, and the seconds of each phase. Any difficulty
 * ends the program: this is no reader. */
#define _XOPEN_SOURCE 700
#include "kernels.h" /* prototypes of the library, from the table that ctypes uses */
#include "lastbranch.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4 << 20, LONGEST = 1 << 16, MOST_RECORDS = (BLOCK + LONGEST) / 8, MOST_THREADS = 2, SAMPLE = 9 };
enum { FIXED = 4, PID = 2, STACK = 1 + FIXED, ENTRY = 3, BRANCHES = 5 }; /* words of a sample; a step of perf_records.c */
enum { SEED = 0x5EED };

struct block {
    u64 *words, *entries, *threads;
    i64 *at, *types, *first, *length, *offsets, *scopes;
    i64 samples;
    void *counter;
};

struct clock { double wall, cpu; };
static struct { struct clock read, walk, count; } phases;

static void require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "bare_loop: %s\n", what);
    exit(1);
}

static double seconds(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Add the time since the last call to `phase`. */
static void spent(struct clock *phase)
{
    static struct clock last;
    struct clock now = {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
    if (phase) phase->wall += now.wall - last.wall, phase->cpu += now.cpu - last.cpu;
    last = now;
}

static void *room(size_t bytes)
{
    void *found = malloc(bytes);
    require(found != NULL, "no memory");
    return found;
}

static struct block new_block(void)
{
    struct block b = {.words = room(BLOCK + LONGEST), .entries = room(BLOCK + LONGEST), .threads = room(BLOCK + LONGEST)};
    i64 **columns[] = {&b.at, &b.types, &b.first, &b.length, &b.offsets, &b.scopes};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) *columns[i] = room((MOST_RECORDS + 1) * sizeof(i64));
    b.counter = lb_counter_new(SEED, 1, 1, 0);
    require(b.counter != NULL, "no memory");
    return b;
}

/* Read the records from `place` on; where the next ones begin. */
static i64 fill(struct block *b, int file, i64 place, i64 end)
{
    static const struct { i32 kind, a, b; } stack = {BRANCHES, ENTRY, 0};
    i64 wanted = end - place < BLOCK ? end - place : BLOCK, rest, found[7];
    require(pread(file, b->words, (size_t)wanted, place) == wanted, "a short read");
    spent(&phases.read);
    i64 records = lb_records_chase(b->words, wanted, 0, 0, b->at, b->types, MOST_RECORDS, &rest);
    require(records > 0, "no record");
    i64 last = b->at[records - 1], next = place + last * 8 + (i64)(b->words[last] >> 48);
    b->samples = 0;
    for (i64 i = 0; i < records; i++)
        if (b->types[i] == SAMPLE) b->at[b->samples++] = b->at[i];
    int done = lb_samples_check(b->words, wanted >> 3, 0, b->at, b->samples, FIXED, &stack, 1, 3, PID, found, b->threads);
    require(done == 0 && found[0] == 0, "damaged samples");
    spent(&phases.walk);
    return next;
}

static void *count(void *block)
{
    struct block *b = block;
    const i64 size = sizeof(u64), words = (BLOCK + LONGEST) / size;
    b->offsets[0] = 0;
    for (i64 i = 0; i < b->samples; i++) {
        const u64 *sample = b->words + b->at[i];
        b->scopes[i] = (i64)(sample[PID] & 0xFFFFFFFF);
        b->first[i] = b->at[i] + STACK + 1;
        b->length[i] = (i64)sample[STACK] * ENTRY;
        b->offsets[i + 1] = b->offsets[i] + (i64)sample[STACK];
    }
    require(lb_take_runs(b->words, words, size, b->first, b->length, b->samples, b->entries, words) == 0, "runs");
    const i64 stride = ENTRY * size;
    u64 *from = b->entries;
    require(lb_counter_add(b->counter, b->scopes, b->offsets, b->samples, from, stride, from + 1, stride, from + 2, stride) == 0,
            "tables that are full, or addresses that the kernel declines");
    return NULL;
}

/* The sum of the counts of all rows; `distinct` grows by their number. */
static i64 taken(void *counter, int ranges, i64 *distinct)
{
    i64 space = lb_counter_rows(counter, ranges), sum = 0;
    size_t bytes = (size_t)(space + 1) * sizeof(u64);
    u64 *a = room(bytes), *b = room(bytes);
    i64 *scope = room(bytes), *values = room(3 * bytes);
    i64 rows = lb_counter_take(counter, ranges, space, scope, a, b, values);
    for (i64 i = 0; i < rows; i++) sum += values[i];
    *distinct += rows;
    free(a), free(b), free(scope), free(values);
    return sum;
}

static void print_phase(const char *name, struct clock spent_in, const char *after)
{
    printf("\"%s\": {\"wall\": %.4f, \"cpu\": %.4f}%s", name, spent_in.wall, spent_in.cpu, after);
}

int main(int argc, char **argv)
{
    require(argc >= 2, "usage: bare_loop FILE [THREADS]");
    int threads = argc > 2 ? atoi(argv[2]) : 1, file = open(argv[1], O_RDONLY);
    require(threads == 1 || threads == MOST_THREADS, "1 or 2 threads");
    u64 head[7];
    require(file >= 0 && pread(file, head, sizeof head, 0) == sizeof head, "cannot read FILE");
    require(!memcmp(head, "PERFILE2", 8), "no perf.data of this byte order");
    i64 place = (i64)head[5], end = place + (i64)head[6], samples = 0, rows = 0, branches = 0, ranges = 0;
    struct block blocks[MOST_THREADS];
    for (int i = 0; i < threads; i++) blocks[i] = new_block();
    spent(NULL);
    while (place < end) {
        int filled = 0;
        for (; filled < threads && place < end; filled++) {
            place = fill(&blocks[filled], file, place, end);
            samples += blocks[filled].samples;
        }
        pthread_t other;
        require(filled < 2 || pthread_create(&other, NULL, count, &blocks[1]) == 0, "no thread");
        count(&blocks[0]);
        if (filled == 2) pthread_join(other, NULL);
        spent(&phases.count);
    }
    for (int i = 0; i < threads; i++) {
        branches += taken(blocks[i].counter, 0, &rows);
        ranges += taken(blocks[i].counter, 1, &rows);
        lb_counter_free(blocks[i].counter);
    }
    spent(&phases.count);
    printf("{\"samples\": %lld, \"branches\": %lld, \"ranges\": %lld, \"rows\": %lld, ", (long long)samples,
           (long long)branches, (long long)ranges, (long long)rows);
    print_phase("read", phases.read, ", ");
    print_phase("walk", phases.walk, ", ");
    print_phase("count", phases.count, "}\n");
    return 0;
}
