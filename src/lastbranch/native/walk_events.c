/* Finds the events of the buffers of a trace log. formats/etl/events/walk.py describes the walk and makes the tables.
 *
 * The size of an event leads to the next one, so that a walk waits for memory at each. Buffers are walked LANES at a time
 * in step: their waits overlap. How many events there are is known afterwards only; until then their lengths are kept. The
 * columns follow group by group of buffers, while these are in the processor's caches. */
#include "lastbranch.h"

enum { LANES = 16, DONE = 0, DECLINED = -1 };

/* By marker, bits 16 to 31 of an event's first word: the header type, 0 for no event. By header type: the shift of the size
 * in that word; 1 where the time stamp is the second word instead of the third; all bits set where the second word is not
 * thread and process; bytes of the header. By the low byte of a message's options: bytes of its header; the type of
 * messages. */
struct tables {
    const u8 *kinds, *shifts, *early;
    const u64 *no_ids;
    const i64 *header_bytes, *message_bytes;
    size_t message;
};

/* Word, first word, header type, size in bytes, buffer, word of the time stamp, word of thread and process. */
struct columns {
    i64 *at;
    u64 *head;
    u8 *header;
    i64 *size;
    i32 *buffer;
    u64 *time, *ids;
};

struct buffers {
    const u8 *words;
    const i64 *first, *end, *limit;
};

struct lane {
    const u8 *at, *end;
    u16 *lengths;
    i64 number, buffer;
};

static inline u32 size_of(u64 head, const struct tables *t)
{
    u32 kind = t->kinds[head >> 16 & 0xFFFF];
    return kind ? head >> t->shifts[kind] & 0xFFFF : 0;
}

/* The next buffer before `past` that has words; 0 after the last buffer. */
static int begin(struct lane *lane, const struct buffers *b, i64 *next, i64 past, u16 **lengths, i64 *count, i64 *stop)
{
    for (; *next < past; ++*next) {
        i64 i = *next, from = b->first[i], to = b->end[i];
        count[i] = 0;
        stop[i] = from < to ? from : to;
        if (from >= to) continue;
        *lane = (struct lane){b->words + from * 8, b->words + to * 8, *lengths, 0, i};
        *lengths += to - from;
        ++*next;
        return 1;
    }
    return 0;
}

/* Walk the buffers from `next` on, before `past`. The lengths of the events of each go to `lengths`, in words, from the sum
 * of the words of the buffers before it on; count[i] is how many there are, stop[i] the word where the chain ended. Returns
 * how many there are in all. */
static i64 walk(const struct tables *t, const struct buffers *b, i64 next, i64 past, u16 *lengths, i64 *count,
                i64 *stop)
{
    struct lane lanes[LANES];
    i64 total = 0;
    int live = 0;
    while (live < LANES && begin(&lanes[live], b, &next, past, &lengths, count, stop)) live++;
    while (live)
        for (int i = 0; i < live; i++) {
            struct lane *lane = &lanes[i];
            u32 length = (size_of(get64(lane->at), t) + 7) >> 3;
            if (length && length <= (lane->end - lane->at) >> 3) {
                lane->lengths[lane->number++] = (u16)length;
                lane->at += length * 8;
                __builtin_prefetch(lane->at);
                if (lane->at < lane->end) continue;
            }
            count[lane->buffer] = lane->number;
            stop[lane->buffer] = (lane->at - b->words) >> 3;
            total += lane->number;
            if (!begin(lane, b, &next, past, &lengths, count, stop)) lanes[i--] = lanes[--live];
        }
    return total;
}

/* The columns of the events of a buffer, from row `n` on. Whether one is shorter than its header or ends after the limit. */
static int gather(const struct tables *t, const struct buffers *b, i64 buffer, i64 number, const u16 *lengths,
                  const struct columns *out, i64 n)
{
    int bad = 0;
    i64 place = b->first[buffer], limit = b->limit[buffer];
    for (i64 k = 0; k < number; k++, n++) {
        const u8 *event = b->words + place * 8;
        u64 head = get64(event);
        u32 kind = t->kinds[head >> 16 & 0xFFFF];
        i64 bytes = size_of(head, t);
        i64 least = kind == t->message ? t->message_bytes[head >> 48 & 0xFF] : t->header_bytes[kind];
        out->at[n] = place;
        out->head[n] = head;
        out->header[n] = (u8)kind;
        out->size[n] = bytes;
        out->buffer[n] = (i32)buffer;
        out->time[n] = get64(event + 16 - t->early[kind] * 8); /* a branch would often be mispredicted */
        out->ids[n] = get64(event + 8) | t->no_ids[kind];
        bad |= bytes < least || place * 8 + bytes > limit;
        place += lengths[k];
    }
    return bad;
}

/* Walk buffers of `number` words: buffer i from word first[i] to end[i], with events up to byte limit[i]. `lengths` has
 * `scratch` items. stop[i] is the word where the chain ended, count[i] the number of events.
 *
 * `state`: how many buffers are done; how many events are in the columns, which have `room`; whether any event is
 * shorter than its header or ends after the limit. If there is no room for the next buffers, a call with larger columns
 * goes on. DECLINED for buffers that are not within the words, two words before their end, or larger than `scratch`. */
EXPORT int lb_walk_events(const struct tables *t, const u8 *words, i64 number, const i64 *first, const i64 *end,
                          const i64 *limit, i64 buffers, u16 *lengths, i64 scratch, const struct columns *out, i64 room,
                          i64 *count, i64 *stop, i64 *state)
{
    struct buffers b = {words, first, end, limit};
    while (state[0] < buffers) {
        i64 from = state[0], past = from, sum = 0;
        for (; past < buffers; past++) {
            if (first[past] >= end[past]) continue;
            if (first[past] < 0 || end[past] > number - 2 || end[past] - first[past] > scratch) return DECLINED;
            if (end[past] - first[past] > scratch - sum) break;
            sum += end[past] - first[past];
        }
        i64 found = walk(t, &b, from, past, lengths, count, stop);
        if (found > room - state[1]) return DONE;
        const u16 *own = lengths;
        for (i64 i = from; i < past; i++) {
            state[2] |= gather(t, &b, i, count[i], own, out, state[1]);
            state[1] += count[i];
            if (first[i] < end[i]) own += end[i] - first[i];
        }
        state[0] = past;
    }
    return DONE;
}
