/* The records of a burst as perf.data has them: call chain and branch stack of each. */
#include "lastbranch.h"

enum { CALL = 4, INDIRECT_CALL = 5, RETURN = 6 }; /* perf's branch types */
enum { TYPE_SHIFT = 20, LENGTH_SHIFT = 8, KIND = 0xFF, LENGTH = 0xF, SWITCHED = 1 << 16, EDGE = 4 };
static const u64 USER_MODE = (u64)1 << 30, USER_CONTEXT = (u64)-512, LARGEST = 64 << 20;

/* base: the stack pointer once it was returned to */
struct caller { u64 returns, base; };

/* The callers after an edge: those whose return addresses are still on the stack. How many, or -1 where another stack is in
 * use, so that they are not known any more. */
static i64 after(const u64 *edge, u64 stack_before, struct caller *callers, i64 count)
{
    u64 stack = edge[3];
    int kind = (int)(edge[2] & KIND);
    if (edge[2] & SWITCHED || stack - stack_before + LARGEST > 2 * LARGEST) return -1;
    if (kind == CALL || kind == INDIRECT_CALL) {
        while (count && callers[count - 1].base <= stack + 8) count--;
        callers[count++] = (struct caller){edge[0] + (edge[2] >> LENGTH_SHIFT & LENGTH), stack + 8};
        return count;
    }
    int expected = kind != RETURN || !count || callers[count - 1].returns == edge[1];
    if (!expected && stack < stack_before) return -1;
    i64 all = count;
    while (count && callers[count - 1].base <= stack) count--; /* returned from, or left by an exception or longjmp */
    return all > 1 && !count && !expected ? -1 : count;
}

/* Write the records of `count` edges, oldest first (source, target, perf's branch type with the length of the
 * instruction in bits 8 up, stack pointer): records of `depth` entries each, the first of which may have fewer. A
 * record has in `out`: with `chains`, the number of words of its call chain, and the chain; the number of its entries;
 * the entries, newest first.
 *
 * `callers` has room for count + `known`. `known` is the number of callers before the first edge, outermost first; less
 * than 0: the callers are not known, and all chains are empty. If the thread changes to another stack, chains are empty
 * from there on, and *fits is 0. `stack` is the stack pointer before. `end` is where the newest record's chain begins,
 * the others' at their newest target.
 *
 * Returns the number of records: `begins` has room for one more, and gets the beginning of each record in `out`. -1:
 * `room` words are not enough. */
EXPORT i64 lb_burst_records(const u64 *edges, i64 count, i64 depth, int chains, struct caller *callers, i64 known,
                            u64 stack, u64 end, u64 *out, i64 room, i64 *begins, int *fits)
{
    i64 records = 0, used = 0, first = 0;
    for (i64 i = 0; i < count; i++) {
        const u64 *edge = edges + EDGE * i;
        if (known >= 0) known = after(edge, stack, callers, known);
        stack = edge[3];
        if ((count - i - 1) % depth) continue;
        i64 frames = known < 0 || !chains ? 0 : known + 2;
        if (used + 2 + frames + 3 * (i + 1 - first) > room) return -1;
        begins[records++] = used;
        if (chains) out[used++] = (u64)frames;
        if (frames) {
            out[used++] = USER_CONTEXT;
            out[used++] = i == count - 1 ? end : edge[1];
            for (i64 n = known - 1; n >= 0; n--) out[used++] = callers[n].returns;
        }
        out[used++] = (u64)(i + 1 - first);
        for (i64 n = i; n >= first; n--) {
            out[used++] = edges[EDGE * n];
            out[used++] = edges[EDGE * n + 1];
            out[used++] = (edges[EDGE * n + 2] & KIND) << TYPE_SHIFT | USER_MODE;
        }
        first = i + 1;
    }
    begins[records] = used;
    *fits = known >= 0;
    return records;
}
