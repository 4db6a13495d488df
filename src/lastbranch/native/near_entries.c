/* The entries of branch stacks near a piece of code: what `Nearby` of analysis/annotation.py counts. */
#include "lastbranch.h"

enum { FEW = 8 }; /* starts that are compared one by one */

struct code { const u64 *start; i64 number; u64 size; };

/* How many starts are not above `address`. */
static inline i64 begun(const struct code *code, u64 address)
{
    i64 low = 0, high = code->number;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (code->start[middle] <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static inline int inside(const struct code *code, u64 address)
{
    int found = 0;
    if (code->number > FEW) {
        i64 number = begun(code, address);
        return number && address - code->start[number - 1] < code->size;
    }
    for (i64 i = 0; i < code->number; i++) found |= address - code->start[i] < code->size;
    return found;
}

/* Whether the code begins after `low`, and at `high` or before. */
static inline int between(const struct code *code, u64 low, u64 high)
{
    int found = 0;
    if (code->number > FEW) return begun(code, low) < begun(code, high);
    for (i64 i = 0; i < code->number; i++) found |= low < code->start[i] && code->start[i] <= high;
    return found;
}

/* Find, in `samples` stacks, the branches with an end in the code, and the ranges with a part in it. The code has `size`
 * bytes at each of `number` ascending addresses `start`. Stack s has the entries offsets[s] to offsets[s + 1], newest first;
 * source and target of entry i are `stride` bytes times i from two bases.
 *
 * `branch` gets the entries, `branch_stack` their stacks; `range` the entries whose branch ends a range (the older one is the
 * next), `range_stack` their stacks. Each has room for all entries; `found` gets the number of branches and of ranges. */
EXPORT void lb_near_entries(const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to, i64 to_stride,
                            const u64 *start, i64 number, u64 size, i64 *branch, i64 *branch_stack, i64 *range,
                            i64 *range_stack, i64 *found)
{
    const struct code code = {start, number, size};
    i64 branches = 0, ranges = 0;
    for (i64 s = 0; s < samples; s++) {
        u64 newer_source = 0, newer_target = 0;
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            u64 source = at_stride(from, from_stride, i), target = at_stride(to, to_stride, i);
            int arrived = inside(&code, target);
            if (i > offsets[s] && target <= newer_source && target && source && newer_target
                && (arrived || between(&code, target, newer_source))) {
                range[ranges] = i - 1;
                range_stack[ranges++] = s;
            }
            if (arrived || inside(&code, source)) {
                branch[branches] = i;
                branch_stack[branches++] = s;
            }
            newer_source = source, newer_target = target;
        }
    }
    found[0] = branches;
    found[1] = ranges;
}
