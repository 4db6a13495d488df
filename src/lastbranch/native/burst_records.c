/* The records of a burst as perf.data has them: call chain and branch stack of each. */
#include "lastbranch.h"

enum { CALL = 4, INDIRECT_CALL = 5, RETURN = 6 }; /* perf's branch types */
enum { TYPE_SHIFT = 20, LENGTH_SHIFT = 8 };
static const u64 USER_MODE = (u64)1 << 30, USER_CONTEXT = (u64)-512;

/* Of `count` edges, oldest first (source, target, and perf's branch type with the length of the instruction in bits 8 up),
 * records of `depth` each, the first of which may have fewer. Each has in `out`:
 * with `chains`, the number of words of its call chain, and the chain; the number of its entries; the entries, newest first.
 *
 * `callers` has room for count + `known` return addresses. So many are those before the first edge, outermost first; less than
 * 0: they are not known, and all chains are empty. A call adds one, a return takes one. Where one does not fit, chains are
 * empty from there on, and *fits is 0. `end` is where the newest record's chain begins, the others' at their newest target.
 *
 * How many records: `begins` has room for one more than these, and gets where they begin in `out`. -1: `room` words are not
 * enough. */
EXPORT i64 lb_burst_records(const u64 *edges, i64 count, i64 depth, int chains, u64 *callers, i64 known, u64 end, u64 *out, i64 room,
                            i64 *begins, int *fits)
{
    i64 records = 0, used = 0, first = 0;
    *fits = 1;
    for (i64 i = 0; i < count; i++) {
        const u64 *edge = edges + 3 * i;
        int kind = (int)(edge[2] & 0xFF);
        if (known >= 0) {
            if (kind == CALL || kind == INDIRECT_CALL) callers[known++] = edge[0] + (edge[2] >> LENGTH_SHIFT);
            else if (kind == RETURN && known && callers[--known] != edge[1]) known = -1, *fits = 0;
        }
        if ((count - i - 1) % depth) continue;
        i64 frames = known < 0 || !chains ? 0 : known + 2;
        if (used + 2 + frames + 3 * (i + 1 - first) > room) return -1;
        begins[records++] = used;
        if (chains) out[used++] = (u64)frames;
        if (frames) {
            out[used++] = USER_CONTEXT;
            out[used++] = i == count - 1 ? end : edge[1];
            for (i64 n = known - 1; n >= 0; n--) out[used++] = callers[n];
        }
        out[used++] = (u64)(i + 1 - first);
        for (i64 n = i; n >= first; n--) {
            out[used++] = edges[3 * n];
            out[used++] = edges[3 * n + 1];
            out[used++] = (edges[3 * n + 2] & 0xFF) << TYPE_SHIFT | USER_MODE;
        }
        first = i + 1;
    }
    begins[records] = used;
    return records;
}
