/* Call stacks rebuilt from branch stacks: what `open_calls` of lbr/callstacks.py says, with the leaf before the callers. */
#include "lastbranch.h"

enum { NOTHING, PUSH, POP, ENTER, LEAVE }; /* as in lbr/callstacks.py */
enum { ZERO_LENGTH = 5 }; /* bytes of a call of the next instruction, which reads its own address */

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

/* The entries of one stack, and where its frames go. */
struct stack {
    i64 first, end, from_stride, to_stride;
    const u8 *from, *to;
    u8 *kind;
    u64 *frame;
};

/* The kind of step of entry i. */
static inline int step_of(const struct stack *s, const u8 *action, int direct, i64 i)
{
    int type = s->kind[i];
    i64 length = (i64)(at_stride(s->to, s->to_stride, i) - at_stride(s->from, s->from_stride, i));
    return ((type == direct) & (length == ZERO_LENGTH)) ? NOTHING : action[type];
}

/* Replay a stack without handlers: how many frames, or HANDLERS. Which entries are calls cannot be predicted, so there is no
 * jump in the loop. */
enum { HANDLERS = -1 };

static i64 replayed(const struct stack *s, const u8 *action, int direct)
{
    i64 n = 0, returned = 0;
    int handlers = 0;
    for (i64 i = s->first; i < s->end; i++) {
        int step = step_of(s, action, direct, i), pop = step == POP, push = step == PUSH, keep = push & !returned;
        handlers |= step >= ENTER;
        returned += pop - (push & !keep);
        s->frame[n] = at_stride(s->from, s->from_stride, i);
        n += keep;
    }
    return handlers ? HANDLERS : n;
}

/* The same for any stack. */
static i64 replayed_with_handlers(const struct stack *s, const u8 *action, int direct)
{
    i64 n = 0, returned = 0, handled = 0;
    for (i64 i = s->first; i < s->end; i++) s->kind[i] = (u8)step_of(s, action, direct, i);
    match_handlers(s->kind + s->first, s->end - s->first);
    for (i64 i = s->first; i < s->end; i++) {
        int keep = 0;
        switch (s->kind[i]) {
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
        if (keep) s->frame[n++] = at_stride(s->from, s->from_stride, i);
    }
    return n;
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
        i64 first = offsets[s], end = offsets[s + 1];
        u64 leaf = ip[s];
        if (!leaf && first < end) leaf = at_stride(to, to_stride, first);
        if (leaf) frame[n++] = leaf;
        struct stack stack = {first, end, from_stride, to_stride, from, to, kind, frame + n};
        i64 found = replayed(&stack, action, direct);
        n += found == HANDLERS ? replayed_with_handlers(&stack, action, direct) : found;
        bounds[s + 1] = n;
    }
    return n;
}
