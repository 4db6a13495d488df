/* The speed of the shipped kernels on this machine: reads a perf.data, walks its records and counts its stacks only.
 * bench_counts.py compiles it with the sources of the library and runs it beside the commands.
 *
 *     bare_loop FILE [THREADS]
 *
 * FILE is as generate.py makes it: of this byte order, one event, its samples with ip, pid, time, period and branch stack.
 * THREADS (1 or 2) take turns to read and walk a block, and count theirs at the same time, each into tables of its own, which
 * are not merged: there are few rows. Blocks are so small that they stay in the processor's second cache.
 * Prints one JSON object: what was counted, distinct rows of all tables, and the seconds of each phase: CPU time of all
 * threads, wall time of the one that took longest. Any difficulty ends the program: this is no reader. */
#define _XOPEN_SOURCE 700
#include "kernels.h" /* prototypes of the library, from the table that ctypes uses */
#include "lastbranch.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 512 << 10, LONGEST = 1 << 16, MOST_RECORDS = (BLOCK + LONGEST) / 8, MOST_THREADS = 2, SAMPLE = 9 };
enum {
    FIXED = 4,
    PID = 2,
    STACK = 1 + FIXED,
    ENTRY = 3,
    BRANCHES = 5
}; /* words of a sample; a step of perf_records.c */
enum { SEED = 0x5EED };

struct clock { double wall, cpu; };
struct phases { struct clock read, walk, count, last; };

/* The state of one thread. */
struct block {
    u64 *words, *threads;
    i64 *at, *types, *first, *depth, *scopes;
    i64 samples, all_samples;
    void *counter;
    struct phases phases;
};

static struct {
    int number;
    i64 place, end;
    pthread_mutex_t turn;
} file = {.turn = PTHREAD_MUTEX_INITIALIZER};

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

/* Add the time since the last call to a phase of this thread. */
static void spent(struct phases *phases, struct clock *phase)
{
    struct clock now = {seconds(CLOCK_MONOTONIC), seconds(CLOCK_THREAD_CPUTIME_ID)};
    if (phase) phase->wall += now.wall - phases->last.wall, phase->cpu += now.cpu - phases->last.cpu;
    phases->last = now;
}

static void *room(size_t bytes)
{
    void *found = malloc(bytes);
    require(found != NULL, "no memory");
    return found;
}

static struct block new_block(void)
{
    struct block b = {.words = room(BLOCK + LONGEST), .threads = room(BLOCK + LONGEST)};
    i64 **columns[] = {&b.at, &b.types, &b.first, &b.depth, &b.scopes};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) *columns[i] = room((MOST_RECORDS + 1) * sizeof(i64));
    b.counter = lb_counter_new(SEED, 1, 1, 0);
    require(b.counter != NULL, "no memory");
    return b;
}

/* Read the next records; whether there are any. */
static int fill(struct block *b)
{
    static const struct { i32 kind, a, b; } stack = {BRANCHES, ENTRY, 0};
    i64 wanted = file.end - file.place < BLOCK ? file.end - file.place : BLOCK, rest, found[7];
    if (wanted <= 0) return 0;
    require(pread(file.number, b->words, (size_t)wanted, file.place) == wanted, "a short read");
    spent(&b->phases, &b->phases.read);
    i64 records = lb_records_chase(b->words, wanted, 0, 0, b->at, b->types, MOST_RECORDS, &rest);
    require(records > 0, "no record");
    i64 last = b->at[records - 1];
    file.place += last * 8 + (i64)(b->words[last] >> 48);
    b->samples = 0;
    for (i64 i = 0; i < records; i++)
        if (b->types[i] == SAMPLE) b->at[b->samples++] = b->at[i];
    int done = lb_samples_check(b->words, wanted >> 3, 0, b->at, b->samples, FIXED, &stack, 1, 3, PID, found,
                                b->threads, NULL, NULL, NULL);
    require(done == 0 && found[0] == 0, "damaged samples");
    b->all_samples += b->samples;
    return 1;
}

static void count(struct block *b)
{
    const i64 word = sizeof(u64), stride = ENTRY * word;
    for (i64 i = 0; i < b->samples; i++) {
        const u64 *sample = b->words + b->at[i];
        b->scopes[i] = (i64)(sample[PID] & 0xFFFFFFFF);
        b->first[i] = b->at[i] + STACK + 1;
        b->depth[i] = (i64)sample[STACK];
    }
    const u64 *from = b->words;
    i64 counted = lb_counter_add(b->counter, b->scopes, b->first, b->depth, b->samples, from, word, stride, from + 1,
                                 word, stride, from + 2, word, stride);
    require(counted == b->samples, "tables that are full, or addresses that the kernel declines");
}

static void *work(void *block)
{
    struct block *b = block;
    for (int more = 1; more;) {
        pthread_mutex_lock(&file.turn);
        spent(&b->phases, NULL);
        more = fill(b);
        spent(&b->phases, &b->phases.walk);
        pthread_mutex_unlock(&file.turn);
        if (!more) break;
        count(b);
        spent(&b->phases, &b->phases.count);
    }
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

static void print_phase(const char *name, struct clock one, struct clock other, const char *after)
{
    double wall = one.wall > other.wall ? one.wall : other.wall;
    printf("\"%s\": {\"wall\": %.4f, \"cpu\": %.4f}%s", name, wall, one.cpu + other.cpu, after);
}

int main(int argc, char **argv)
{
    require(argc >= 2, "usage: bare_loop FILE [THREADS]");
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    require(threads == 1 || threads == MOST_THREADS, "1 or 2 threads");
    file.number = open(argv[1], O_RDONLY);
    u64 head[7];
    require(file.number >= 0 && pread(file.number, head, sizeof head, 0) == sizeof head, "cannot read FILE");
    require(!memcmp(head, "PERFILE2", 8), "no perf.data of this byte order");
    file.place = (i64)head[5], file.end = file.place + (i64)head[6];
    i64 samples = 0, rows = 0, branches = 0, ranges = 0;
    struct block blocks[MOST_THREADS] = {0};
    pthread_t other;
    for (int i = 0; i < threads; i++) blocks[i] = new_block();
    require(threads < 2 || pthread_create(&other, NULL, work, &blocks[1]) == 0, "no thread");
    work(&blocks[0]);
    require(threads < 2 || pthread_join(other, NULL) == 0, "no thread");
    spent(&blocks[0].phases, NULL);
    for (int i = 0; i < threads; i++) {
        samples += blocks[i].all_samples;
        branches += taken(blocks[i].counter, 0, &rows);
        ranges += taken(blocks[i].counter, 1, &rows);
        lb_counter_free(blocks[i].counter);
    }
    spent(&blocks[0].phases, &blocks[0].phases.count);
    printf("{\"samples\": %lld, \"branches\": %lld, \"ranges\": %lld, \"rows\": %lld, ", (long long)samples,
           (long long)branches, (long long)ranges, (long long)rows);
    print_phase("read", blocks[0].phases.read, blocks[1].phases.read, ", ");
    print_phase("walk", blocks[0].phases.walk, blocks[1].phases.walk, ", ");
    print_phase("count", blocks[0].phases.count, blocks[1].phases.count, "}\n");
    return 0;
}
