/* The stationary distribution of sparse Markov chains by elimination, and strongly connected components: what
 * analysis/executions/markov_chain.py does without the library. */
#include "lastbranch.h"

#include <stdlib.h>

/* A list of states; a reader of the list leaves out states that were eliminated since. */
struct list {
    i32 *item;
    i32 count, room;
};

/* The order of elimination, and for each state the cells that it reads and writes. A cell holds the weight of a
 * transition: given transitions from 1 on, then new transitions; cell 0 takes transitions from a state to itself. */
struct elimination {
    i64 states, given, last, cells;
    i64 steps, words, room;
    i32 *word; /* state, number of sources, of targets; sources; cells into, out of it; a cell for each pair */
};

struct making {
    struct elimination *e;
    struct list *into, *out; /* by state */
    i64 *degree_in, *degree_out;
    u8 *gone;
    u64 *slot; /* the pair of states + 1; 0: free */
    i32 *slot_cell;
    u64 mask, used;
    i64 *heap_key;
    i32 *heap_state;
    i64 heap, heap_room;
};

static int append(struct list *l, i32 value)
{
    if (l->count == l->room) {
        i32 room = l->room ? 2 * l->room : 4, *more;
        if (room < 0 || !(more = realloc(l->item, (size_t)room * sizeof *more))) return 0;
        l->item = more;
        l->room = room;
    }
    l->item[l->count++] = value;
    return 1;
}

static inline u64 hashed(u64 pair)
{
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 32;
}

static int rehash(struct making *m, u64 mask)
{
    u64 *slot = calloc(mask + 1, sizeof *slot);
    i32 *cell = malloc((mask + 1) * sizeof *cell);
    if (!slot || !cell) {
        free(slot);
        free(cell);
        return 0;
    }
    for (u64 i = 0; m->slot && i <= m->mask; i++) {
        if (!m->slot[i]) continue;
        u64 at = hashed(m->slot[i]) & mask;
        while (slot[at]) at = (at + 1) & mask;
        slot[at] = m->slot[i];
        cell[at] = m->slot_cell[i];
    }
    free(m->slot);
    free(m->slot_cell);
    m->slot = slot;
    m->slot_cell = cell;
    m->mask = mask;
    return 1;
}

/* The cell of a transition, which is made if there is none: 0 without memory. */
static i32 cell_of(struct making *m, i32 from, i32 to)
{
    u64 pair = ((u64)(u32)from << 32 | (u32)to) + 1, at = hashed(pair) & m->mask;
    while (m->slot[at]) {
        if (m->slot[at] == pair) return m->slot_cell[at];
        at = (at + 1) & m->mask;
    }
    if (m->e->cells == INT32_MAX || !append(&m->out[from], to) || !append(&m->into[to], from)) return 0;
    m->degree_out[from]++;
    m->degree_in[to]++;
    m->slot[at] = pair;
    m->slot_cell[at] = (i32)m->e->cells++;
    i32 cell = m->slot_cell[at];
    if (++m->used * 2 > m->mask && !rehash(m, m->mask * 2 + 1)) return 0;
    return cell;
}

static inline i64 degree(const struct making *m, i32 state) { return m->degree_in[state] * m->degree_out[state]; }

static inline int before(const struct making *m, i64 a, i64 b)
{ return m->heap_key[a] != m->heap_key[b] ? m->heap_key[a] < m->heap_key[b] : m->heap_state[a] < m->heap_state[b]; }

static inline void swap(struct making *m, i64 a, i64 b)
{
    i64 key = m->heap_key[a];
    i32 state = m->heap_state[a];
    m->heap_key[a] = m->heap_key[b], m->heap_state[a] = m->heap_state[b];
    m->heap_key[b] = key, m->heap_state[b] = state;
}

static void sink(struct making *m, i64 at)
{
    for (i64 child; (child = 2 * at + 1) < m->heap; at = child) {
        if (child + 1 < m->heap && before(m, child + 1, child)) child++;
        if (!before(m, child, at)) return;
        swap(m, child, at);
    }
}

/* Leave the states that are there in a list. */
static void prune(const struct making *m, struct list *l)
{
    i32 kept = 0;
    for (i32 i = 0; i < l->count; i++)
        if (!m->gone[l->item[i]]) l->item[kept++] = l->item[i];
    l->count = kept;
}

/* Room for more words of the plan; 0 without memory, or beyond `most`. */
static int reserve(struct elimination *e, i64 words, i64 most)
{
    if (words > most - e->words) return 0;
    if (e->words + words <= e->room) return 1;
    i64 room = e->room ? e->room : 1 << 12;
    while (room < e->words + words) room *= 2;
    i32 *more = realloc(e->word, (size_t)room * sizeof *more);
    if (!more) return 0;
    e->word = more;
    e->room = room;
    return 1;
}

static int eliminate(struct making *m, i32 state, i64 most)
{
    struct elimination *e = m->e;
    struct list *into = &m->into[state], *out = &m->out[state];
    m->gone[state] = 1;
    prune(m, into);
    prune(m, out);
    i64 ins = into->count, outs = out->count;
    if (!reserve(e, 3 + 2 * ins + outs, most) || (outs && ins > (most - e->words) / outs)) return 0;
    if (!reserve(e, 3 + 2 * ins + outs + ins * outs, most)) return 0;
    i32 *word = e->word + e->words;
    *word++ = state, *word++ = (i32)ins, *word++ = (i32)outs;
    for (i64 i = 0; i < ins; i++) *word++ = into->item[i];
    for (i64 i = 0; i < ins; i++) *word++ = cell_of(m, into->item[i], state);
    for (i64 j = 0; j < outs; j++) *word++ = cell_of(m, state, out->item[j]);
    for (i64 i = 0; i < ins; i++) m->degree_out[into->item[i]]--;
    for (i64 j = 0; j < outs; j++) m->degree_in[out->item[j]]--;
    for (i64 i = 0; i < ins; i++)
        for (i64 j = 0; j < outs; j++) {
            i32 cell = 0;
            if (into->item[i] != out->item[j] && !(cell = cell_of(m, into->item[i], out->item[j]))) return 0;
            *word++ = cell;
        }
    e->words = word - e->word;
    e->steps++;
    free(into->item);
    free(out->item);
    *into = *out = (struct list){0};
    return 1;
}

static int planned(struct making *m, const i64 *source, const i64 *target, i64 most)
{
    struct elimination *e = m->e;
    for (i64 i = 0; i < e->given; i++) {
        if (source[i] < 0 || source[i] >= e->states || target[i] < 0 || target[i] >= e->states) return 0;
        if (!cell_of(m, (i32)source[i], (i32)target[i]) || e->cells != i + 2) return 0;
    }
    for (i64 s = 0; s < e->states; s++)
        if (s != e->last) {
            m->heap_key[m->heap] = degree(m, (i32)s);
            m->heap_state[m->heap++] = (i32)s;
        }
    for (i64 i = m->heap / 2; i-- > 0;) sink(m, i);
    while (m->heap) {
        i32 state = m->heap_state[0];
        i64 now = degree(m, state);
        if (now != m->heap_key[0]) { /* its neighbours are others since */
            i64 old = m->heap_key[0];
            m->heap_key[0] = now;
            if (now > old) {
                sink(m, 0);
                continue;
            }
        }
        swap(m, 0, --m->heap);
        sink(m, 0);
        if (!eliminate(m, state, most)) return 0;
    }
    return 1;
}

EXPORT void lb_elimination_free(struct elimination *e)
{
    if (!e) return;
    free(e->word);
    free(e);
}

/* The plan for `states` states and `given` transitions, each pair once and none to itself; NULL without memory, where it
 * would take more than `most` words, and for transitions that are not such. */
EXPORT struct elimination *lb_elimination_new(i64 states, const i64 *source, const i64 *target, i64 given, i64 last,
                                              i64 most)
{
    if (states < 1 || states > INT32_MAX / 2 || given < 0 || given > INT32_MAX / 2 || last < 0 || last >= states)
        return NULL;
    struct elimination *e = calloc(1, sizeof *e);
    struct making m = {.e = e};
    size_t n = (size_t)states;
    u64 mask = 1024;
    while (mask < (u64)given * 4) mask *= 2;
    m.into = calloc(n, sizeof *m.into), m.out = calloc(n, sizeof *m.out);
    m.degree_in = calloc(n, sizeof *m.degree_in), m.degree_out = calloc(n, sizeof *m.degree_out);
    m.gone = calloc(n, 1), m.heap_key = malloc(n * sizeof *m.heap_key), m.heap_state = malloc(n * sizeof *m.heap_state);
    int done = e && m.into && m.out && m.degree_in && m.degree_out && m.gone && m.heap_key && m.heap_state;
    if (done) {
        *e = (struct elimination){.states = states, .given = given, .last = last, .cells = 1};
        done = rehash(&m, mask - 1) && planned(&m, source, target, most);
    }
    for (i64 s = 0; s < states; s++) {
        if (m.into) free(m.into[s].item);
        if (m.out) free(m.out[s].item);
    }
    free(m.into), free(m.out), free(m.degree_in), free(m.degree_out), free(m.gone), free(m.heap_key),
        free(m.heap_state);
    free(m.slot), free(m.slot_cell);
    if (done) return e;
    lb_elimination_free(e);
    return NULL;
}

/* The distribution for these weights of the given transitions, in proportion: `found` gets a value for each state. */
EXPORT int lb_elimination_run(const struct elimination *e, const double *weight, double *found)
{
    double *cell = calloc((size_t)e->cells, sizeof *cell);
    i64 *place = malloc((size_t)(e->steps ? e->steps : 1) * sizeof *place);
    if (!cell || !place) {
        free(cell);
        free(place);
        return -1;
    }
    memcpy(cell + 1, weight, (size_t)e->given * sizeof *cell);
    const i32 *word = e->word;
    for (i64 step = 0; step < e->steps; step++) {
        place[step] = word - e->word;
        i64 ins = word[1], outs = word[2];
        const i32 *into = word + 3 + ins, *out = into + ins, *product = out + outs;
        double whole = 0;
        for (i64 j = 0; j < outs; j++) whole += cell[out[j]];
        double inverse = whole > 0 ? 1 / whole : 0;
        for (i64 i = 0; i < ins; i++) {
            double part = cell[into[i]] *= inverse;
            for (i64 j = 0; j < outs; j++) cell[product[j]] += part * cell[out[j]];
            product += outs;
        }
        cell[0] = 0;
        word = product;
    }
    memset(found, 0, (size_t)e->states * sizeof *found);
    found[e->last] = 1;
    for (i64 step = e->steps; step-- > 0;) {
        word = e->word + place[step];
        double sum = 0;
        for (i64 i = 0; i < word[1]; i++) sum += found[word[3 + i]] * cell[word[3 + word[1] + i]];
        found[word[0]] = sum;
    }
    free(cell);
    free(place);
    return 0;
}

/* The strongly connected component of each state, by Tarjan's algorithm without recursion: state s leads to
 * follows[offsets[s]] up to offsets[s + 1]. */
EXPORT int lb_strong_components(const i64 *offsets, i64 states, const i64 *follows, i64 *found)
{
    size_t n = (size_t)(states ? states : 1);
    i64 *number = calloc(n, sizeof *number), *low = malloc(n * sizeof *low), *next = malloc(n * sizeof *next);
    i64 *waiting = malloc(n * sizeof *waiting), *path = malloc(n * sizeof *path);
    int done = number && low && next && waiting && path;
    i64 counted = 0, components = 0, waits = 0;
    for (i64 s = 0; done && s < states; s++) found[s] = -1, next[s] = offsets[s];
    for (i64 root = 0; done && root < states; root++) {
        if (number[root]) continue;
        i64 depth = 0;
        path[depth++] = root;
        while (depth) {
            i64 state = path[depth - 1];
            if (!number[state]) {
                number[state] = low[state] = ++counted;
                waiting[waits++] = state;
            }
            if (next[state] < offsets[state + 1]) {
                i64 other = follows[next[state]++];
                if (!number[other]) path[depth++] = other;
                else if (found[other] < 0 && number[other] < low[state]) low[state] = number[other];
                continue;
            }
            if (--depth && low[state] < low[path[depth - 1]]) low[path[depth - 1]] = low[state];
            if (low[state] == number[state]) {
                while (found[state] < 0) found[waiting[--waits]] = components;
                components++;
            }
        }
    }
    free(number), free(low), free(next), free(waiting), free(path);
    return done ? 0 : -1;
}
