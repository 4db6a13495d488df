/* Finds the events of the buffers of a trace log. formats/etl/events/walk.py describes them and has the tables: `kinds` by
 * marker, bits 16 to 31 of an event's first word (0: no event), and by kind the shift of the size in that word.
 *
 * The size of an event leads to the next one, so that a walk waits for memory at each. Buffers are walked LANES at a time
 * in step: their waits overlap. How many events there are is known afterwards only; until then their first words are kept
 * in `heads`. */
#include "lastbranch.h"

enum { LANES = 16 };

struct lane { const u8 *at, *end; u64 *heads; i64 number, buffer; };

static inline u32 size_of(u64 head, const u8 *kinds, const u8 *shifts)
{
    u32 kind = kinds[head >> 16 & 0xFFFF];
    return kind ? head >> shifts[kind] & 0xFFFF : 0;
}

/* The next buffer that has words; 0 after the last one. `room` is that in `heads`. */
static int begin(struct lane *lane, const u8 *words, i64 number, const i64 *first, const i64 *end, i64 buffers, i64 *next,
                 u64 **heads, i64 *room, i64 *count, i64 *stop)
{
    for (; *next < buffers; ++*next) {
        i64 i = *next, from = first[i], to = end[i];
        count[i] = 0;
        stop[i] = from < to ? from : to;
        if (from >= to) continue;
        if (from < 0 || to > number || to - from > *room) return -1;
        *lane = (struct lane){words + from * 8, words + to * 8, *heads, 0, i};
        *heads += to - from;
        *room -= to - from;
        ++*next;
        return 1;
    }
    return 0;
}

/* Walk buffers of `number` words: buffer i from word first[i] to end[i]. The first words of its events go to `heads`, from the sum of
 * the lengths of the buffers before it on; count[i] is how many there are, stop[i] the word where the chain ended. The
 * number of all events; -1 for buffers that are not within the words or need more than `room` heads. */
EXPORT i64 lb_walk_events(const u8 *words, i64 number, const i64 *first, const i64 *end, i64 buffers, const u8 *kinds,
                          const u8 *shifts, u64 *heads, i64 room, i64 *count, i64 *stop)
{
    struct lane lanes[LANES];
    i64 next = 0, total = 0;
    int live = 0, found = 1;
    while (live < LANES && (found = begin(&lanes[live], words, number, first, end, buffers, &next, &heads, &room, count, stop)) > 0)
        live++;
    while (live && found >= 0)
        for (int i = 0; i < live; i++) {
            struct lane *lane = &lanes[i];
            u64 head = get64(lane->at);
            u32 size = (size_of(head, kinds, shifts) + 7) & ~7u;
            if (size && size <= (u64)(lane->end - lane->at)) {
                lane->heads[lane->number++] = head;
                lane->at += size;
                __builtin_prefetch(lane->at);
                if (lane->at < lane->end) continue;
            }
            count[lane->buffer] = lane->number;
            stop[lane->buffer] = (lane->at - words) >> 3;
            total += lane->number;
            found = begin(lane, words, number, first, end, buffers, &next, &heads, &room, count, stop);
            if (found < 0) break;
            if (!found) lanes[i--] = lanes[--live];
        }
    return found < 0 ? -1 : total;
}

/* The columns of the events with `heads` (see above), `room` of them: word, first word, header type, size in bytes and
 * buffer. Whether any event is shorter than its header, by header type and for messages by the low byte of its options, or
 * goes beyond limit[buffer], in bytes; -1 for more events than `room`. */
EXPORT int lb_event_columns(const i64 *first, const i64 *end, const i64 *count, const i64 *limit, i64 buffers,
                            const u64 *heads, const u8 *kinds, const u8 *shifts, const i64 *header_bytes,
                            const i64 *message_bytes, int message, i64 room, i64 *at, u64 *head, u8 *header, i64 *size,
                            i32 *buffer)
{
    int bad = 0;
    i64 n = 0;
    for (i64 i = 0; i < buffers; i++) {
        if (count[i] > room - n) return -1;
        i64 place = first[i];
        for (i64 k = 0; k < count[i]; k++, n++) {
            u64 word = heads[k];
            u32 kind = kinds[word >> 16 & 0xFFFF];
            i64 bytes = size_of(word, kinds, shifts);
            i64 least = kind == (u32)message ? message_bytes[word >> 48 & 0xFF] : header_bytes[kind];
            at[n] = place;
            head[n] = word;
            header[n] = (u8)kind;
            size[n] = bytes;
            buffer[n] = (i32)i;
            bad |= bytes < least || place * 8 + bytes > limit[i];
            place += (bytes + 7) >> 3;
        }
        if (first[i] < end[i]) heads += end[i] - first[i];
    }
    return bad;
}
