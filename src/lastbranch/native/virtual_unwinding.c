/* Branches replayed backwards from the call stack of each sample: the stack before each branch.
 *
 * Stacks are nodes of a tree, each with the address of its last frame. A state is a node, shifted by one bit; the
 * lowest bit says that the stack was lost, and only the last frame is known. The effect of a step on a state is worked
 * out once, and kept as an event, which counts the requests for this effect. Nodes and events are found by seeded
 * hashes. */
#include "lastbranch.h"

#include <stdlib.h>

enum { ADDED = 0, NO_MEMORY = -1, DECLINED = -2 };
enum { BROKEN = 2, RANGE = 3, CALL = 0, RETURN = 4 }; /* of a step, as virtual_unwinding.py says */
enum { ROOT = 0, LEAST = 1 << 10 };
enum { BESIDE = 16 }; /* samples that take a step each, so that the events of all are fetched at once */

struct node {
    u64 address;
    u32 parent;
};
struct event {
    u64 times;
    u32 state, step, after;
};
/* slots: 1 + a row, 0 where it is free */
struct index {
    u32 *slots;
    u64 mask;
};

struct unwinder {
    struct node *nodes;
    struct event *events;
    struct index of_node, of_event;
    u64 number, room, counted, space, seed; /* nodes, room for nodes; events, room for events */
};

static inline u64 place_of(const struct unwinder *t, u64 one, u64 other)
{
    u64 h = (t->seed ^ one) * 0x9E3779B97F4A7C15u;
    h = ((h ^ h >> 32) ^ other) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static inline u64 place_of_node(const struct unwinder *t, u32 row)
{ return place_of(t, t->nodes[row].address, t->nodes[row].parent); }

static inline u64 place_of_event(const struct unwinder *t, u32 row)
{ return place_of(t, t->events[row].state, t->events[row].step); }

EXPORT void lb_unwinder_free(struct unwinder *t)
{
    if (!t) return;
    free(t->nodes);
    free(t->events);
    free(t->of_node.slots);
    free(t->of_event.slots);
    free(t);
}

EXPORT struct unwinder *lb_unwinder_new(u64 seed)
{
    struct unwinder *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct unwinder){.number = 1,
                           .room = LEAST,
                           .space = LEAST,
                           .seed = seed,
                           .of_node.mask = 2 * LEAST - 1,
                           .of_event.mask = 2 * LEAST - 1};
    t->nodes = malloc(LEAST * sizeof *t->nodes);
    t->events = malloc(LEAST * sizeof *t->events);
    t->of_node.slots = calloc(2 * LEAST, sizeof(u32));
    t->of_event.slots = calloc(2 * LEAST, sizeof(u32));
    if (!t->nodes || !t->events || !t->of_node.slots || !t->of_event.slots) {
        lb_unwinder_free(t);
        return NULL;
    }
    t->nodes[ROOT] = (struct node){0, ROOT};
    return t;
}

/* Twice the room in an array and in its index. The rows are to be entered again. */
static int doubled(void **rows, u64 *room, size_t size, struct index *index)
{
    if (*room >= (u64)1 << 30) return 0; /* a state takes 31 bits and one */
    u64 mask = index->mask * 2 + 1;
    u32 *slots = calloc(mask + 1, sizeof *slots);
    void *more = slots ? realloc(*rows, *room * 2 * size) : NULL;
    if (!more) {
        free(slots);
        return 0;
    }
    free(index->slots);
    *index = (struct index){slots, mask};
    *rows = more;
    *room *= 2;
    return 1;
}

static inline void enter(struct index *index, u64 place, u32 row)
{
    while (index->slots[place & index->mask]) place++;
    index->slots[place & index->mask] = row + 1;
}

/* The node below `parent` with an address, made where there is none; ROOT without memory. */
static u32 child(struct unwinder *t, u32 parent, u64 address)
{
    u64 place = place_of(t, address, parent);
    for (u32 slot, at = 0; (slot = t->of_node.slots[(place + at) & t->of_node.mask]); at++)
        if (t->nodes[slot - 1].address == address && t->nodes[slot - 1].parent == parent) return slot - 1;
    if (t->number == t->room) {
        void *rows = t->nodes;
        if (!doubled(&rows, &t->room, sizeof *t->nodes, &t->of_node)) return ROOT;
        t->nodes = rows;
        for (u32 row = ROOT + 1; row < t->number; row++) enter(&t->of_node, place_of_node(t, row), row);
    }
    u32 row = (u32)t->number++;
    t->nodes[row] = (struct node){address, parent};
    enter(&t->of_node, place, row);
    return row;
}

/* The state before a step that goes from `source`, or 0 without memory. */
static u32 before(struct unwinder *t, u32 state, u8 how, u64 source, u64 call)
{
    u32 leaf = state >> 1, parent = t->nodes[leaf].parent;
    if (state & 1 || (how & RANGE) == BROKEN) {
        u32 alone = child(t, ROOT, source);
        return alone ? alone << 1 | 1 : 0;
    }
    int does = how & ~RANGE;
    if (does == CALL && parent != ROOT && t->nodes[parent].address == source) return parent << 1;
    if (does == RETURN) {
        parent = child(t, parent, call);
        if (!parent) return 0;
    }
    return child(t, parent, source) << 1;
}

/* The event of a state and a step, made where there is none; NULL without memory. */
static struct event *event_of(struct unwinder *t, u32 state, u32 step, u8 how, u64 source, u64 call)
{
    u64 place = place_of(t, state, step);
    for (u32 slot, at = 0; (slot = t->of_event.slots[(place + at) & t->of_event.mask]); at++)
        if (t->events[slot - 1].state == state && t->events[slot - 1].step == step) return &t->events[slot - 1];
    u32 after = before(t, state, how, source, call);
    if (!after) return NULL;
    if (t->counted == t->space) {
        void *rows = t->events;
        if (!doubled(&rows, &t->space, sizeof *t->events, &t->of_event)) return NULL;
        t->events = rows;
        for (u32 row = 0; row < t->counted; row++) enter(&t->of_event, place_of_event(t, row), row);
    }
    u32 row = (u32)t->counted++;
    t->events[row] = (struct event){0, state, step, after};
    enter(&t->of_event, place, row);
    return &t->events[row];
}

static int in_order(const i64 *offsets, i64 samples, i64 size)
{
    if (offsets[0] < 0 || offsets[samples] > size) return 0;
    for (i64 i = 0; i < samples; i++)
        if (offsets[i + 1] < offsets[i]) return 0;
    return 1;
}

/* Sample i has the frames frame[chains[i]] to frame[chains[i + 1]], leaf first, at least one, and the steps
 * step[ends[i]] to step[ends[i + 1]], newest first, which are rows of `how`, `source` and `call` (`steps` of them).
 * ADDED or a negative number; after NO_MEMORY the counts are of a part. */
EXPORT int lb_unwinder_add(struct unwinder *t, const u64 *frame, i64 frames, const i64 *chains, const i64 *step,
                           i64 entries, const i64 *ends, i64 samples, const u8 *how, const u64 *source, const u64 *call,
                           i64 steps)
{
    if (samples < 0 || steps >= UINT32_MAX || !in_order(chains, samples, frames) || !in_order(ends, samples, entries))
        return DECLINED;
    for (i64 i = 0; i < samples; i++)
        if (chains[i] == chains[i + 1]) return DECLINED;
    for (i64 i = ends[0]; i < ends[samples]; i++)
        if (step[i] < 0 || step[i] >= steps) return DECLINED;
    for (i64 begin = 0, end; begin < samples; begin = end) {
        u32 state[BESIDE];
        i64 deepest = 0;
        end = begin + BESIDE < samples ? begin + BESIDE : samples;
        for (i64 i = begin; i < end; i++) {
            u32 node = ROOT;
            for (i64 k = chains[i + 1]; k-- > chains[i];)
                if (!(node = child(t, node, frame[k]))) return NO_MEMORY;
            state[i - begin] = node << 1;
            if (deepest < ends[i + 1] - ends[i]) deepest = ends[i + 1] - ends[i];
        }
        for (i64 k = 0; k < deepest; k++) {
            u64 place[BESIDE];
            for (i64 i = begin; i < end; i++) {
                if (k >= ends[i + 1] - ends[i]) continue;
                place[i - begin] = place_of(t, state[i - begin], (u64)step[ends[i] + k]);
                __builtin_prefetch(&t->of_event.slots[place[i - begin] & t->of_event.mask]);
            }
            for (i64 i = begin; i < end; i++) {
                if (k >= ends[i + 1] - ends[i]) continue;
                u32 slot = t->of_event.slots[place[i - begin] & t->of_event.mask];
                if (slot) __builtin_prefetch(&t->events[slot - 1], 1);
            }
            for (i64 i = begin; i < end; i++) {
                if (k >= ends[i + 1] - ends[i]) continue;
                i64 row = step[ends[i] + k];
                struct event *event = event_of(t, state[i - begin], (u32)row, how[row], source[row], call[row]);
                if (!event) return NO_MEMORY;
                event->times++;
                state[i - begin] = event->after;
            }
        }
    }
    return ADDED;
}

/* How many nodes, the root being the first, and how many events there are. */
EXPORT i64 lb_unwinder_nodes(const struct unwinder *t) { return (i64)t->number; }
EXPORT i64 lb_unwinder_events(const struct unwinder *t) { return (i64)t->counted; }

/* All nodes and events, column by column. */
EXPORT void lb_unwinder_rows(const struct unwinder *t, i64 *parent, u64 *address, i64 *state, i64 *step, i64 *after,
                             i64 *times)
{
    for (u64 i = 0; i < t->number; i++) {
        parent[i] = t->nodes[i].parent;
        address[i] = t->nodes[i].address;
    }
    for (u64 i = 0; i < t->counted; i++) {
        state[i] = t->events[i].state;
        step[i] = t->events[i].step;
        after[i] = t->events[i].after;
        times[i] = (i64)t->events[i].times;
    }
}
