/* Call stacks rebuilt from branch stacks: what `open_calls` of lbr/callstacks.py says, with the leaf before the callers. */
#include "lastbranch.h"

enum { NOTHING, PUSH, POP, ENTER, LEAVE }; /* as in lbr/callstacks.py */
enum { ZERO_LENGTH = 5 };                  /* bytes of a call of the next instruction, which reads its own address */

/* Undo the ways back out of handlers whose way in is not among the entries: nothing is known of what they end. */
static void match_handlers(u8 *step, i64 size)
{
    i64 inside = 0;
    for (i64 i = size - 1; i >= 0; i--) {
        if (step[i] == ENTER) inside++;
        else if (step[i] == LEAVE && inside) inside--;
        else if (step[i] == LEAVE) step[i] = NOTHING;
    }
}

/* The call stack of each of `samples`, leaf first: `ip`, or without it the target of the newest entry, then the sources of
 * the calls that have not returned. Stack s has the entries offsets[s] to offsets[s + 1], newest first; source and target
 * of entry i are `stride` bytes times i from two bases. `kind[i]` is its branch type, `action` what each of the 256 does,
 * `direct` the type of direct calls. `kind` is overwritten.
 *
 * `frame` has room for all entries and a leaf of each sample, `bounds` for samples + 1. How many frames. */
EXPORT i64 lb_call_stacks(const u64 *ip, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to,
                          i64 to_stride, u8 *kind, const u8 *action, int direct, u64 *frame, i64 *bounds)
{
    i64 n = 0;
    bounds[0] = 0;
    for (i64 s = 0; s < samples; s++) {
        i64 first = offsets[s], end = offsets[s + 1], returned = 0, handled = 0;
        int handlers = 0;
        for (i64 i = first; i < end; i++) {
            int type = kind[i], step = action[type];
            if (type == direct && at_stride(to, to_stride, i) - at_stride(from, from_stride, i) == ZERO_LENGTH) step = NOTHING;
            kind[i] = (u8)step;
            handlers |= step >= ENTER;
        }
        if (handlers) match_handlers(kind + first, end - first);
        u64 leaf = ip[s];
        if (!leaf && first < end) leaf = at_stride(to, to_stride, first);
        if (leaf) frame[n++] = leaf;
        for (i64 i = first; i < end; i++) {
            int keep = 0;
            switch (kind[i]) {
            case LEAVE: handled++; break;
            case ENTER:
                if (handled) handled--;
                else keep = 1, returned = 0; /* what is newer cannot return from what is older */
                break;
            case POP: returned += !handled; break;
            case PUSH:
                if (handled) break;
                if (returned) returned--;
                else keep = 1;
            }
            if (keep) frame[n++] = at_stride(from, from_stride, i);
        }
        bounds[s + 1] = n;
    }
    return n;
}
