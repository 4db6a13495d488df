/* The entries of branch stacks near some pieces of code: what `Nearby` of analysis/function/annotation.py counts. */
#include "lastbranch.h"

enum { FEW = 8 }; /* so few bounds are compared in turn */

/* How many of `number` ascending bounds are not above `address`. */
static inline i64 passed(const u64 *bound, i64 number, u64 address)
{
    i64 low = 0, high = number;
    if (number <= FEW) {
        for (i64 i = 0; i < number; i++) low += bound[i] <= address;
        return low;
    }
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (bound[middle] <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Find, in `samples` stacks, the branches with an end in the code, and the ranges with a part in it. The code lies
 * between `number` ascending bounds: from the first up to the second, from the third up to the fourth and so on, so
 * that an address in the code has passed an odd number of bounds. Stack s has the entries offsets[s] to offsets[s + 1],
 * newest first; source and target of entry i are `stride` bytes times i from two bases.
 *
 * `branch` gets the entries, `branch_stack` their stacks; `range` the entries whose branch ends a range (the older one
 * is the next), `range_stack` their stacks. Each has room for all entries; `found` gets the number of branches and of
 * ranges. */
EXPORT void lb_near_entries(const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to,
                            i64 to_stride, const u64 *bound, i64 number, i64 *branch, i64 *branch_stack, i64 *range,
                            i64 *range_stack, i64 *found)
{
    i64 branches = 0, ranges = 0;
    for (i64 s = 0; s < samples; s++) {
        u64 newer_source = 0, newer_target = 0;
        i64 end = 0;
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            u64 source = at_stride(from, from_stride, i), target = at_stride(to, to_stride, i);
            i64 left = passed(bound, number, source), arrived = passed(bound, number, target);
            /* The range begins in the code, or before a piece of code that begins before the range ends. */
            int covers = arrived & 1 || arrived < end;
            if (i > offsets[s] && target <= newer_source && target && source && newer_target && covers) {
                range[ranges] = i - 1;
                range_stack[ranges++] = s;
            }
            if ((arrived | left) & 1) {
                branch[branches] = i;
                branch_stack[branches++] = s;
            }
            newer_source = source, newer_target = target, end = left;
        }
    }
    found[0] = branches;
    found[1] = ranges;
}
