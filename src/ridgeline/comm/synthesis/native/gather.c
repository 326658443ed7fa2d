/* An all-gather on direct links, event by event: a link that is free takes what came first to its sender and is
   lacking at its rank, or of the first few such chunks the one that fewest ranks have.

   A step's round is the first after what it needs: after the step that brought its chunk, and the link's step before. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double time;
    int32_t link;
} Event;

typedef struct {
    int32_t n, links, chunks, words, width;
    const int32_t *tail, *head, *first_out, *out;
    const double *seconds;
    int32_t *list, *level, *holders, *at, *last, *end, *lacks, *carries, *todo, *stamp;
    uint64_t *promised; /* bits, by rank and chunk */
    uint8_t *idle;
    Event *heap;
    int32_t flying, waiting, turn, begin;
    int even;
    uint64_t random;
    double deadline;
} Search;

static uint64_t drawn(Search *s) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

static int before(const Event *a, const Event *b) {
    return a->time < b->time || (a->time == b->time && a->link < b->link);
}

/* Where links are equally quick what began first ends first: a queue, not a heap. */
static void push(Search *s, double time, int32_t link) {
    int32_t at = s->flying++;
    Event mine = {time, link};
    if (s->even) {
        s->heap[(s->begin + at) % s->links] = mine;
        return;
    }
    while (at > 0 && before(&mine, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = mine;
}

static double soonest(const Search *s) { return s->heap[s->even ? s->begin : 0].time; }

static Event popped(Search *s) {
    if (s->even) {
        const int32_t at = s->begin;
        s->begin = at + 1 < s->links ? at + 1 : 0;
        s->flying--;
        return s->heap[at];
    }
    Event first = s->heap[0], last = s->heap[--s->flying];
    int32_t at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= s->flying) break;
        if (child + 1 < s->flying && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &last)) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return first;
}

static int has(const uint64_t *bits, int32_t chunk) { return bits[chunk >> 6] >> (chunk & 63) & 1; }

static void promise(Search *s, int32_t rank, int32_t chunk) {
    s->promised[(int64_t)rank * s->words + (chunk >> 6)] |= (uint64_t)1 << (chunk & 63);
}

/* The chunk that a link takes now, or -1. */
static int32_t chosen(Search *s, int32_t link) {
    const int32_t rank = s->head[link], source = s->tail[link];
    const int32_t *list = s->list + (int64_t)source * s->chunks, end = s->end[source];
    const uint64_t *mine = s->promised + (int64_t)rank * s->words;
    int32_t at = s->at[link];
    while (at < end && has(mine, list[at])) at++;
    s->at[link] = at;
    if (at == end) return -1;
    int32_t best = list[at];
    for (int32_t seen = 1, more = at + 1; seen < s->width && more < end; more++) {
        if (has(mine, list[more])) continue;
        if (s->holders[list[more]] < s->holders[best]) best = list[more];
        seen++;
    }
    return best;
}

static void wanted(Search *s, int32_t link) {
    if (s->idle[link] && s->stamp[link] != s->turn && s->lacks[s->head[link]]) {
        s->stamp[link] = s->turn;
        s->todo[s->waiting++] = link;
    }
}

/* Returns the number of steps, or -1 where memory lacks. */
int64_t gather(int32_t n, int32_t links, int32_t per_rank, int32_t width, const int32_t *tail, const int32_t *head,
               const int32_t *first_out, const int32_t *out, const double *seconds, double deadline, uint64_t seed,
               int32_t *source_of, int32_t *target_of, int32_t *chunk_of, int32_t *round_of, double *took) {
    const int32_t chunks = n * per_rank;
    const int64_t places = (int64_t)n * chunks;
    Search s = {.n = n, .links = links, .chunks = chunks, .width = width, .tail = tail, .head = head,
                .first_out = first_out, .out = out, .seconds = seconds, .deadline = deadline,
                .random = seed * 2654435769u + 88172645463325252ull};
    s.list = malloc(places * sizeof(int32_t));
    s.even = 1;
    for (int32_t link = 0; link < links; link++) s.even &= seconds[link] == seconds[0];
    s.level = malloc((s.even ? 1 : places) * sizeof(int32_t));
    s.words = (chunks + 63) / 64;
    s.promised = calloc((int64_t)n * s.words, sizeof(uint64_t));
    s.holders = malloc(chunks * sizeof(int32_t));
    s.end = malloc(n * sizeof(int32_t));
    s.lacks = malloc(n * sizeof(int32_t));
    s.at = calloc(links, sizeof(int32_t));
    s.last = malloc(links * sizeof(int32_t));
    s.carries = malloc(links * sizeof(int32_t));
    s.todo = malloc(links * sizeof(int32_t));
    s.stamp = calloc(links, sizeof(int32_t));
    s.idle = malloc(links);
    s.heap = malloc(links * sizeof(Event));
    int64_t made = -1;
    if (s.list && s.level && s.promised && s.holders && s.end && s.lacks && s.at && s.last && s.carries && s.todo &&
        s.stamp && s.idle && s.heap) {
        memset(s.idle, 1, links);
        for (int32_t rank = 0; rank < n; rank++) {
            for (int32_t own = 0; own < per_rank; own++) {
                const int32_t chunk = rank * per_rank + own;
                s.list[(int64_t)rank * chunks + own] = chunk;
                promise(&s, rank, chunk);
                if (!s.even) s.level[(int64_t)rank * chunks + chunk] = -1;
            }
            s.end[rank] = per_rank;
            s.lacks[rank] = chunks - per_rank;
        }
        for (int32_t chunk = 0; chunk < chunks; chunk++) s.holders[chunk] = 1;
        for (int32_t link = 0; link < links; link++) s.last[link] = -1;
        made = 0;
        double now = 0.0;
        int32_t tick = 0;
        int64_t left = places - chunks;
        s.turn = 1;
        for (int32_t link = 0; link < links; link++) wanted(&s, link);
        while (left || s.flying) {
            for (int32_t at = s.waiting - 1; at > 0; at--) {
                const int32_t other = (int32_t)(drawn(&s) % (uint64_t)(at + 1)), kept = s.todo[at];
                s.todo[at] = s.todo[other];
                s.todo[other] = kept;
            }
            for (int32_t at = 0; at < s.waiting; at++) {
                const int32_t link = s.todo[at];
                if (now + seconds[link] > s.deadline) continue;
                const int32_t chunk = chosen(&s, link);
                if (chunk < 0) continue;
                promise(&s, head[link], chunk);
                int32_t round = tick;
                if (!s.even) {
                    const int32_t came = s.level[(int64_t)tail[link] * chunks + chunk];
                    round = 1 + (came > s.last[link] ? came : s.last[link]);
                    s.last[link] = s.level[(int64_t)head[link] * chunks + chunk] = round;
                }
                s.holders[chunk]++;
                s.lacks[head[link]]--;
                s.carries[link] = chunk;
                s.idle[link] = 0;
                source_of[made] = tail[link];
                target_of[made] = head[link];
                chunk_of[made] = chunk;
                round_of[made++] = round;
                left--;
                push(&s, now + seconds[link], link);
            }
            s.waiting = 0;
            s.turn++;
            if (!s.flying) {
                if (!left) break;
                s.deadline += s.deadline * 0.05;
                for (int32_t link = 0; link < links; link++) wanted(&s, link);
                continue;
            }
            now = soonest(&s);
            tick++;
            const double together = now * (1 + 1e-12);
            while (s.flying && soonest(&s) <= together) {
                const int32_t link = popped(&s).link, rank = head[link];
                s.list[(int64_t)rank * chunks + s.end[rank]++] = s.carries[link];
                s.idle[link] = 1;
                wanted(&s, link);
                if (s.holders[s.carries[link]] == n) continue; /* nobody lacks it */
                for (int32_t at = first_out[rank]; at < first_out[rank + 1]; at++) wanted(&s, out[at]);
            }
        }
        *took = now;
    }
    free(s.list); free(s.level); free(s.promised); free(s.holders); free(s.end); free(s.lacks); free(s.at);
    free(s.last); free(s.carries); free(s.todo); free(s.stamp); free(s.idle); free(s.heap);
    return made;
}
