/* The chain of perf's records, and whether the fields of samples fit into them.
 *
 * Words are those of `formats/perfdata/walk.py`, in the order of this machine. perf_event_header {u32 type; u16 misc;
 * u16 size} is one word; its first field is the lowest in a little-endian file, the highest in a big-endian one. */
#include "lastbranch.h"

enum { CHECKED, DECLINED };
enum { TRACING_DATA = 66, AUXTRACE = 71 }; /* data follow the record */
enum { SEEN = 256, SEEN_SHIFT = 64 - 8, AHEAD = 8 };

/* Find the records that are whole in the first `length` bytes of `words`, from byte `from` on (a multiple of 8), up to
 * a record that leaves the grid of words or that data follow. `at` gets the word of each header, `types` the type:
 * `room` of them at most. Returns the number of records; `rest` is where the next call continues, or -1 if there are no
 * more. */
EXPORT i64 lb_records_chase(const u64 *words, i64 length, int big_endian, i64 from, i64 *at, i64 *types, i64 room,
                            i64 *rest)
{
    i64 n = 0;
    *rest = -1;
    for (i64 place = from; length - place >= 8;) {
        if (n == room) {
            *rest = place;
            break;
        }
        u64 head = words[place >> 3];
        i64 size = (i64)(big_endian ? head & 0xFFFF : head >> 48),
            type = (i64)(big_endian ? head >> 32 : head & 0xFFFFFFFF);
        if (size < 8 || size > length - place) break;
        if (size * AHEAD < length - place) __builtin_prefetch(words + ((place + size * AHEAD) >> 3));
        at[n] = place >> 3;
        types[n++] = type;
        if (size & 7 || type == TRACING_DATA || type == AUXTRACE) break;
        place += size;
    }
    return n;
}

/* The kinds of steps of `SampleLayout`, at a field of variable position: a number and two operands. */
enum step_kind {
    SKIP,      /* a words */
    COUNTED,   /* u64 count, b words, count items of a words */
    RAW,       /* u32 size, so many bytes, padded so that both together are whole words */
    REGISTERS, /* u64 abi, then a words unless it is 0 */
    SIZED,     /* u64 size, so many bytes, padded to words; a words follow unless it is 0 */
    BRANCHES,  /* as COUNTED: the branch stack */
};
struct step { i32 kind, a, b; };

/* How many words `step` takes from `place` on, where `left` are left: more than these, or -1, where it does not fit. `depth`
 * becomes the number of branches. */
static inline i64 taken(const struct step *step, const u64 *place, i64 left, int big_endian, i64 *depth)
{
    if (step->kind == SKIP) return step->a;
    if (left < 1) return -1;
    u64 value = *place;
    switch (step->kind) {
    case COUNTED:
    case BRANCHES:
        if (value > (u64)left) return -1;
        if (step->kind == BRANCHES) *depth = (i64)value;
        return 1 + step->b + (i64)value * step->a;
    case RAW: return (i64)(((big_endian ? value >> 32 : value & 0xFFFFFFFF) + 4 + 7) >> 3);
    case REGISTERS: return 1 + (value ? step->a : 0);
    default: /* SIZED */
        if (value > (u64)left * 8) return -1;
        return 1 + (value ? (i64)((value + 7) >> 3) + step->a : 0);
    }
}

/* Walk the fields of the samples at words `at`: `fixed` words follow the header, then `steps`. `time` and `thread` are
 * words of a sample, 0 for none; without a time that is its place, in bytes.
 *
 * `found` gets: how many samples are damaged, the first of those; of the others the branches, the deepest stack,
 * earliest and latest time, and how many values are in `threads` (room for `samples`): every (pid, tid) at least once.
 * `stack`, if given, gets the first word of the branches of each sample, -1 for a damaged sample, and `depths` the
 * number of branches; `heads` gets the header and the fixed words of each sample that is not damaged, as 1 + `fixed`
 * columns of `samples` words. DECLINED for records beyond `count` words and for unknown steps. */
EXPORT int lb_samples_check(const u64 *words, i64 count, int big_endian, const i64 *at, i64 samples, i64 fixed,
                            const struct step *steps, i64 number, i64 time, i64 thread, i64 *found, u64 *threads,
                            i64 *stack, i64 *depths, u64 *heads)
{
    i64 damaged = 0, first_damaged = -1, entries = 0, deepest = 0, earliest = INT64_MAX, latest = INT64_MIN, listed = 0;
    u64 seen[SEEN];
    u8 known[SEEN] = {0};
    if (fixed < 0 || time < 0 || time > fixed || thread < 0 || thread > fixed) return DECLINED;
    for (i64 i = 0; i < number; i++) {
        const struct step *s = &steps[i];
        int counted = s->kind == COUNTED || s->kind == BRANCHES;
        if (s->kind < SKIP || s->kind > BRANCHES || s->a < counted || s->b < 0) return DECLINED;
    }
    for (i64 i = 0; i < samples; i++) {
        if (at[i] < 0 || at[i] >= count) return DECLINED;
        const u64 *record = words + at[i];
        i64 size = (i64)(big_endian ? *record & 0xFFFF : *record >> 48) >> 3, place = 1 + fixed, depth = 0,
            branches = 0;
        if (size > count - at[i]) return DECLINED;
        int fits = place <= size;
        for (i64 k = 0; fits && k < number; k++) {
            i64 n = taken(&steps[k], record + place, size - place, big_endian, &depth);
            fits = n >= 0 && n <= size - place;
            if (steps[k].kind == BRANCHES) branches = place + 1 + steps[k].b;
            place += n;
        }
        if (stack) {
            stack[i] = fits ? at[i] + branches : -1;
            depths[i] = fits ? depth : 0;
            for (i64 k = 0; fits && k <= fixed; k++) heads[k * samples + i] = record[k];
        }
        if (!fits) {
            if (!damaged++) first_damaged = i;
            continue;
        }
        entries += depth;
        if (depth > deepest) deepest = depth;
        i64 when = time ? (i64)record[time] : at[i] * 8;
        if (when < earliest) earliest = when;
        if (when > latest) latest = when;
        if (!thread) continue;
        u64 value = record[thread], slot = value * 0x9E3779B97F4A7C15u >> SEEN_SHIFT; /* pid and tid are often equal */
        if (known[slot] && seen[slot] == value) continue;
        known[slot] = 1;
        threads[listed++] = seen[slot] = value;
    }
    i64 all[] = {damaged, first_damaged, entries, deepest, earliest, latest, listed};
    memcpy(found, all, sizeof all);
    return CHECKED;
}
