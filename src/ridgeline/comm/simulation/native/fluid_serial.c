/* Flows of ports that send one message at a time, on one way each: what `fluid_exact.c` finds, at two thirds of its price.

   Ports take turns through their messages in the order of rounds, so a port is its flow, and messages lie as they came
   in: ports that keep pace read one line together. Rates are settled as in `fluid_exact.c`, by looks at links. A look at
   two or three flows has no loop, and links are marked without branches, which nobody could foretell: absent flows are
   `nobody`, with a cap of 0, and absent links are `none`, with an infinite level.

   The file is compiled for flows of up to three shared links (leaf and spine), and by `fluid_serial_six.c` of up to six. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "flows.h"

#ifndef SEATS
#define SEATS 3
#define BITS 2
#define RUN run_turns_three
#endif

#define FINE 4          /* ticks of the wheel between two events, on average */
#define NEAR 1e-12      /* relative difference of levels that counts as none */
#define PATIENCE 10000  /* times that each link may be looked at in one moment */
#define FEW 10          /* flows on a link that lie beside it: 64 bytes in all */
#define KIND ((1 << BITS) - 1)
#define INLINE static inline __attribute__((always_inline))

enum { FULL = 1, CROWDED = 2, DIRTY = 4 };

/* What a connection has: its own limit by links that nobody shares, its delay, and the links that it shares. */
typedef struct {
    double cap, delay;
    i32 links, link[SEATS];
} Way;

/* What limits a flow. Its links stand twice, so that those beside the kth are the next SEATS - 1. */
typedef struct {
    double cap;
    i32 link[2 * SEATS - 1];
} Limits;

/* A link and the flows on it, as seats (flow << BITS) + place of the link among the flow's; `nobody` after the last. */
typedef struct {
    double rate;
    i32 *on, flows, room, few[FEW];
} Link;

/* A port's message under way, from `when` it ends or arrives; while it waits, `tick` is the row that it waits for. */
typedef struct {
    double rate, when, delay;
    i64 tick;
    i32 before, next, message, links, flowing;
} Flow;

typedef struct {
    i32 come, waits;
} Place;

/* Links and flows while rates are settled. `want`: FULL, CROWDED (two flows or more), or DIRTY: to be looked at. */
typedef struct {
    Limits *limits;
    double *level;
    Link *link;
    uint8_t *want, *moved;
    i32 *dirty, *touched;
    uint64_t dirty_from, dirty_to, dirty_mask;
    i64 touched_count;
} Rates;

typedef struct {
    const Turns *turns;
    Way *ways;
    i32 none, nobody;
    Rates rates;
    Flow *flows, *flow;
    i32 *seat_at; /* by seat: place among the link's flows */
    i32 *head;    /* of the wheel, by tick: the flows whose event is in it */
    uint64_t *full; /* a bit for each tick that has one */
    i64 ticks, tick, hooked;
    double ticks_per_s, usual, now;
    i32 *fresh, fresh_count, *batch;
    Place *place;
    double *other, *arrived;
    i64 moments, looked, patience;
    int failed;
} State;

/* Room that many ports look into at once lies on large pages, else every look misses the TLB. */
static void *wide_room(size_t bytes) {
    const size_t page = (size_t)1 << 21;
    if (bytes < page / 2) return malloc(bytes + 1);
    size_t whole = (bytes + page - 1) / page * page;
    void *found = aligned_alloc(page, whole);
#ifdef MADV_HUGEPAGE
    if (found) madvise(found, whole, MADV_HUGEPAGE);
#endif
    return found;
}

INLINE double least(double a, double b) { return a < b ? a : b; }
INLINE double most(double a, double b) { return a > b ? a : b; }

INLINE void unhook(State *s, i32 f) {
    Flow *a = s->flow + f;
    i64 slot = a->tick & (s->ticks - 1);
    i32 *from = a->before >= 0 ? &s->flow[a->before].next : s->head + slot;
    *from = a->next;
    s->flow[a->next].before = a->before; /* flow -1 stands for none */
    s->full[slot >> 6] ^= (uint64_t)((uint32_t)(a->before & a->next) >> 31) << (slot & 63);
}

INLINE void hook(State *s, i32 f) {
    Flow *a = s->flow + f;
    i64 tick = (i64)least(a->when * s->ticks_per_s, 4e18);
    a->tick = tick < s->tick ? s->tick : tick;
    i64 slot = a->tick & (s->ticks - 1);
    i32 first = s->head[slot];
    a->before = -1;
    a->next = first;
    s->flow[first].before = f;
    s->head[slot] = f;
    s->full[slot >> 6] |= (uint64_t)1 << (slot & 63);
}

/* The first tick from `tick` on that has a flow, of this turn of the wheel or of a later one. */
INLINE i64 next_full(const State *s, i64 tick) {
    i64 word = (tick & (s->ticks - 1)) >> 6, words = s->ticks >> 6;
    uint64_t bits = s->full[word] >> (tick & 63);
    if (bits) return tick + __builtin_ctzll(bits);
    for (tick = (tick | 63) + 1;; tick += 64) {
        word = (word + 1) & (words - 1);
        if (s->full[word]) return tick + __builtin_ctzll(s->full[word]);
    }
}

static i64 lowest_tick(const State *s) {
    i64 low = INT64_MAX;
    for (i64 slot = 0; slot < s->ticks; slot++)
        for (i32 f = s->head[slot]; f >= 0; f = s->flow[f].next)
            if (s->flow[f].tick < low) low = s->flow[f].tick;
    return low;
}

/* When the next event is; its tick becomes the wheel's. */
INLINE double soonest(State *s) {
    if (!s->hooked) return INFINITY;
    for (i64 begun = s->tick;; s->tick++) {
        double found = INFINITY;
        s->tick = next_full(s, s->tick);
        for (i32 f = s->head[s->tick & (s->ticks - 1)]; f >= 0; f = s->flow[f].next)
            if (s->flow[f].tick == s->tick && s->flow[f].when < found) found = s->flow[f].when;
        if (found < INFINITY) return found;
        if (s->tick - begun > s->ticks) { /* a whole turn of nothing */
            begun = lowest_tick(s);
            s->tick = begun - 1;
        }
    }
}

/* Look at link `l` where `hit`, else it is `want`; without a branch, which nobody could foretell. */
INLINE void mark(Rates *r, i32 l, int hit, int want) {
    r->dirty[r->dirty_to & r->dirty_mask] = l;
    r->dirty_to += (uint64_t)hit;
    r->want[l] = (uint8_t)(hit ? DIRTY : want);
}

static int more_room(Link *link) {
    size_t room = (size_t)link->room * 4;
    i32 *more = malloc(room * sizeof(i32));
    if (!more) return 0;
    memcpy(more, link->on, (size_t)link->flows * sizeof(i32));
    if (link->on != link->few) free(link->on);
    link->on = more;
    link->room = (i32)room;
    return 1;
}

INLINE void start(State *s, i32 f) {
    Flow *a = s->flow + f;
    const Turn *turn = s->turns->turn + a->message;
    const Way *way = s->ways + turn->connection;
    Limits *limits = s->rates.limits + f;
    a->flowing = 1;
    a->links = way->links;
    a->delay = way->delay;
    a->when = turn->size;
    limits->cap = way->cap;
    for (i32 k = 0; k < SEATS; k++) limits->link[k] = way->link[k];
    for (i32 k = 0; k < SEATS - 1; k++) limits->link[SEATS + k] = way->link[k];
    for (i32 k = 0; k < way->links; k++) {
        i32 l = way->link[k], seat = (f << BITS) + k;
        Link *link = s->rates.link + l;
        if (link->flows == link->room && !more_room(link)) {
            s->failed = 1;
            return;
        }
        s->seat_at[seat] = link->flows;
        link->on[link->flows++] = seat;
        int want = s->rates.want[l];
        mark(&s->rates, l, (link->flows > 1) & (want != DIRTY), want);
    }
    s->rates.moved[f] = 1;
    s->fresh[s->fresh_count++] = f;
    __builtin_prefetch(turn + (turn->next < 0 ? 0 : turn->next - a->message));
}

INLINE void leave(State *s, i32 f) {
    const i32 *own = s->rates.limits[f].link;
    for (i32 k = 0; k < s->flow[f].links; k++) {
        i32 l = own[k], place = s->seat_at[(f << BITS) + k];
        Link *link = s->rates.link + l;
        i32 last = link->on[--link->flows];
        link->on[place] = last;
        link->on[link->flows] = s->nobody << BITS;
        s->seat_at[last] = place;
        int want = s->rates.want[l]; /* what was not full is not full now */
        mark(&s->rates, l, want & FULL, want & ~((link->flows <= 1) * CROWDED));
    }
}

INLINE int lacks(State *s, i32 f, i32 read, i32 needed, i64 row) {
    if (!needed || s->place[read].come >= needed) return 0;
    s->flow[f].tick = row;
    s->flow[f].next = s->place[read].waits;
    s->place[read].waits = f;
    return 1;
}

/* Let a message flow, or wait for the first chunk that it lacks, from the `row`th on. */
INLINE void attempt(State *s, i32 f, i64 row) {
    const Turn *turn = s->turns->turn + s->flow[f].message;
    if (turn->more) {
        const Chunk *chunk = s->turns->chunk + turn->read;
        for (; row <= turn->more; row++)
            if (lacks(s, f, chunk[row].read, chunk[row].needed, row)) return;
    } else if (lacks(s, f, turn->read, turn->needed, 0)) {
        return;
    }
    start(s, f);
}

static __attribute__((noinline)) void wake(State *s, i32 waits) {
    while (waits >= 0) {
        i32 next = s->flow[waits].next;
        attempt(s, waits, s->flow[waits].tick);
        waits = next;
    }
}

INLINE void write_place(State *s, i32 write) {
    Place *place = s->place + write;
    i32 waits = place->waits;
    place->come++;
    if (waits < 0) return;
    place->waits = -1;
    wake(s, waits);
}

INLINE void arrive(State *s, i32 f) {
    Flow *a = s->flow + f;
    const Turn *turn = s->turns->turn + a->message;
    s->arrived[a->message] = a->when;
    if (turn->more) {
        const Chunk *chunk = s->turns->chunk + turn->read;
        for (i32 row = 0; row <= turn->more; row++)
            if (chunk[row].write >= 0) write_place(s, chunk[row].write);
    } else if (turn->write >= 0) {
        write_place(s, turn->write);
    }
    a->message = turn->next;
    if (a->message >= 0) attempt(s, f, 0);
}

/* What is needed when this message arrives is brought near while it is on its way. */
INLINE void fetch(const State *s, i32 f) {
    const Turn *turn = s->turns->turn + s->flow[f].message;
    if (turn->more) return;
    if (turn->write >= 0) __builtin_prefetch(s->place + turn->write, 1);
    if (turn->next < 0) return;
    turn = s->turns->turn + turn->next;
    __builtin_prefetch(s->ways + turn->connection);
    if (turn->needed) __builtin_prefetch(s->place + turn->read, 1);
}

/* The most that the flow of a seat may have on links other than the seat's. */
INLINE double beside(const Limits *limits, const double *level, i32 seat) {
    const Limits *mine = limits + (seat >> BITS);
    const i32 *link = mine->link + (seat & KIND);
    double found = mine->cap;
    for (i32 k = 1; k < SEATS; k++) found = least(found, level[link[k]]);
    return found;
}

/* A flow's limit on one link moved: look next at those of its others that are `what`. */
INLINE void spread(Rates *r, i32 seat, int what) {
    i32 f = seat >> BITS;
    const i32 *link = r->limits[f].link + (seat & KIND);
    r->touched[r->touched_count] = f;
    r->touched_count += !r->moved[f];
    r->moved[f] = 1;
    for (i32 k = 1; k < SEATS; k++) {
        int want = r->want[link[k]];
        mark(r, link[k], (want & what) != 0, want);
    }
}

/* The level of a link with many flows; what they may have elsewhere is left in `other`. */
static __attribute__((noinline)) double full_level(const Link *link, const Limits *limits, const double *level_of,
                                                   double *other) {
    i32 n = link->flows;
    double sum = 0.0;
    for (i32 e = 0; e < n; e++) sum += other[e] = beside(limits, level_of, link->on[e]);
    if (sum <= link->rate * (1 + NEAR)) return INFINITY;
    double level = link->rate / n;
    for (;;) {
        double rest = link->rate, held = 0.0;
        for (i32 e = 0; e < n; e++) {
            int low = other[e] <= level;
            held += !low;
            rest -= low ? other[e] : 0.0;
        }
        if (held <= 0.0 || rest <= level * held * (1 + NEAR)) return level;
        level = rest / held;
    }
}

/* Of flows that may have a, b and c elsewhere: the largest of what is left for the last three, two and one. */
INLINE double level_of_three(double rate, double a, double b, double c) {
    double low = least(a, b), high = most(a, b), first = least(low, c), second = most(low, least(high, c));
    double level = most(rate / 3, most((rate - first) * 0.5, rate - first - second));
    return a + b + c > rate * (1 + NEAR) ? level : INFINITY;
}

INLINE double level_of_two(double rate, double a, double b) {
    double level = most(rate * 0.5, rate - least(a, b));
    return a + b > rate * (1 + NEAR) ? level : INFINITY;
}

/* Whether a level moved; not where both are infinite. Sets it, and what the link is then. */
INLINE int set_level(Rates *r, i32 l, i32 n, double before, double level) {
    double low = least(before, level), high = most(before, level);
    int moved = high - low > NEAR * low;
    if (!moved) {
        r->want[l] = (uint8_t)((before < INFINITY) * FULL | (n > 1) * CROWDED);
        return 0;
    }
    r->want[l] = (uint8_t)((level < INFINITY) * FULL | (n > 1) * CROWDED);
    r->level[l] = level;
    return 1;
}

/* Links that a new level reaches: those that may fill up, or those that are full. */
INLINE int reached(double before, double level) { return level > before ? CROWDED : FULL; }

/* Set levels until none moves; 0 where they do not settle. */
static int settle(State *s) {
    Rates r = s->rates;
    uint64_t last = r.dirty_from + (uint64_t)s->patience, begun = r.dirty_from;
    while (r.dirty_from != r.dirty_to) {
        i32 l = r.dirty[r.dirty_from++ & r.dirty_mask];
        const Link *link = r.link + l;
        const i32 *on = link->on;
        i32 n = link->flows;
        double before = r.level[l];
        if (n <= 2) {
            i32 x = on[0], y = on[1];
            double a = beside(r.limits, r.level, x), b = beside(r.limits, r.level, y);
            double level = level_of_two(link->rate, a, b), low = least(before, level);
            if (!set_level(&r, l, n, before, level)) continue;
            int what = reached(before, level);
            if (a > low) spread(&r, x, what);
            if (b > low) spread(&r, y, what);
        } else if (n == 3) {
            i32 x = on[0], y = on[1], z = on[2];
            double a = beside(r.limits, r.level, x), b = beside(r.limits, r.level, y), c = beside(r.limits, r.level, z);
            double level = level_of_three(link->rate, a, b, c), low = least(before, level);
            if (!set_level(&r, l, n, before, level)) continue;
            int what = reached(before, level);
            if (a > low) spread(&r, x, what);
            if (b > low) spread(&r, y, what);
            if (c > low) spread(&r, z, what);
        } else {
            double level = full_level(link, r.limits, r.level, s->other), low = least(before, level);
            if (!set_level(&r, l, n, before, level)) continue;
            for (i32 e = 0; e < n; e++)
                if (s->other[e] > low) spread(&r, on[e], reached(before, level));
        }
        if (r.dirty_from > last) return 0;
    }
    s->looked += (i64)(r.dirty_from - begun);
    s->rates.dirty_from = s->rates.dirty_to = r.dirty_from;
    s->rates.touched_count = r.touched_count;
    return 1;
}

INLINE double rate_of(const Rates *r, i32 f) {
    double rate = r->limits[f].cap;
    for (i32 k = 0; k < SEATS; k++) rate = least(rate, r->level[r->limits[f].link[k]]);
    return rate;
}

/* Max-min rates after what began and ended, and the ends that follow; 0 where levels do not settle. */
INLINE int share_out(State *s) {
    s->moments += (s->rates.dirty_from != s->rates.dirty_to) | (s->fresh_count > 0);
    if (s->rates.dirty_from != s->rates.dirty_to && !settle(s)) return 0;
    for (i32 i = 0; i < s->fresh_count; i++) {
        Flow *a = s->flow + s->fresh[i];
        s->rates.moved[s->fresh[i]] = 0;
        a->rate = rate_of(&s->rates, s->fresh[i]);
        a->when = s->now + a->when / a->rate;
        hook(s, s->fresh[i]);
    }
    for (i64 i = 0; i < s->rates.touched_count; i++) {
        i32 f = s->rates.touched[i];
        Flow *a = s->flow + f;
        double rate = rate_of(&s->rates, f);
        s->rates.moved[f] = 0;
        if (rate == a->rate) continue;
        a->when = s->now + (a->when - s->now) * (a->rate / rate);
        a->rate = rate;
        unhook(s, f);
        hook(s, f);
    }
    s->hooked += s->fresh_count;
    s->fresh_count = 0;
    s->rates.touched_count = 0;
    return 1;
}

/* All events of the wheel's tick up to `until`. */
INLINE void take_batch(State *s, double until) {
    i32 count = 0;
    for (i32 f = s->head[s->tick & (s->ticks - 1)]; f >= 0; f = s->flow[f].next)
        if (s->flow[f].tick == s->tick && s->flow[f].when <= until) s->batch[count++] = f;
    for (i32 i = 0; i < count; i++) {
        i32 f = s->batch[i];
        Flow *a = s->flow + f;
        unhook(s, f);
        if (a->flowing) {
            leave(s, f);
            a->flowing = 0;
            a->when += a->delay;
            hook(s, f);
            fetch(s, f);
        } else {
            s->hooked--;
            arrive(s, f);
        }
    }
}

/* Each connection's cap, delay and shared links; its links are of those that `shared` says. */
static int lay(State *s, const Network *net, const char *shared) {
    s->ways = wide_room(((size_t)net->connections + 1) * sizeof(Way));
    if (!s->ways) return 0;
    for (i64 c = 0; c < net->connections; c++) {
        Way *way = s->ways + c;
        double cap = INFINITY;
        i32 count = 0;
        for (i64 k = 0; k < net->wide; k++) {
            i64 l = net->links[c * net->wide + k];
            cap = least(net->rates[l], cap); /* `none` is infinite */
            if (shared[l]) way->link[count++] = (i32)l;
        }
        way->cap = cap;
        way->delay = net->delay[c];
        way->links = count;
        for (; count < SEATS; count++) way->link[count] = s->none;
    }
    for (i64 l = 0; l <= net->none; l++) {
        Link *link = s->rates.link + l;
        *link = (Link){.rate = net->rates[l], .room = FEW};
        link->on = link->few;
        for (i32 k = 0; k < FEW; k++) link->few[k] = s->nobody << BITS;
        s->rates.level[l] = INFINITY;
    }
    return 1;
}

/* How long a message takes by itself, the mean of some. */
static double usual_s(const State *s) {
    i64 every = s->turns->messages / 4096 + 1, count = 0;
    double sum = 0.0;
    for (i64 m = 0; m < s->turns->messages; m += every, count++)
        sum += s->turns->turn[m].size / s->ways[s->turns->turn[m].connection].cap;
    return sum > 0.0 ? sum / (double)count : 1e-9;
}

static int make_wheel(State *s) {
    s->usual = usual_s(s);
    s->ticks_per_s = FINE * (double)s->turns->ports / s->usual;
    s->ticks = 1024;
    while (s->ticks < 4 * FINE * s->turns->ports && s->ticks < 1 << 20) s->ticks *= 2;
    s->head = malloc((size_t)s->ticks * sizeof(i32));
    s->full = calloc((size_t)s->ticks / 64, sizeof(uint64_t));
    if (s->head) memset(s->head, 0xff, (size_t)s->ticks * sizeof(i32));
    return s->head && s->full;
}

static int make(State *s, const Turns *turns, const Network *net, const char *shared) {
    size_t flows = (size_t)turns->ports + 2, links = (size_t)net->none + 1;
    Rates *r = &s->rates;
    s->turns = turns;
    s->none = (i32)net->none;
    s->nobody = (i32)turns->ports;
    s->patience = PATIENCE * (net->none + 16);
    for (r->dirty_mask = 16; r->dirty_mask < links; r->dirty_mask *= 2) {
    }
    r->dirty = malloc((size_t)r->dirty_mask-- * sizeof(i32));
    r->link = calloc(links, sizeof(Link));
    r->level = malloc(links * sizeof(double));
    r->want = calloc(links, 1);
    r->moved = calloc(flows, 1);
    r->limits = calloc(flows, sizeof(Limits));
    r->touched = malloc(flows * sizeof(i32));
    s->flows = calloc(flows, sizeof(Flow));
    s->flow = s->flows + 1;
    s->seat_at = malloc((flows << BITS) * sizeof(i32));
    s->fresh = malloc(flows * sizeof(i32));
    s->batch = malloc(flows * sizeof(i32));
    s->other = malloc(flows * sizeof(double));
    s->place = wide_room((size_t)(turns->places + 1) * sizeof(Place));
    if (!r->dirty || !r->link || !r->level || !r->want || !r->moved || !r->limits || !r->touched || !s->flows ||
        !s->seat_at || !s->fresh || !s->batch || !s->other || !s->place || !lay(s, net, shared) || !make_wheel(s))
        return 0;
    for (i32 k = 0; k < 2 * SEATS - 1; k++) r->limits[s->nobody].link[k] = s->none;
    for (i64 p = 0; p < turns->places; p++) s->place[p] = (Place){0, -1};
    return 1;
}

static void clear(State *s, i64 links) {
    for (i64 l = 0; s->rates.link && l <= links; l++)
        if (s->rates.link[l].on != s->rates.link[l].few) free(s->rates.link[l].on);
    void *parts[] = {s->rates.dirty, s->rates.link, s->rates.level, s->rates.want, s->rates.moved, s->rates.limits,
                     s->rates.touched, s->ways, s->flows, s->seat_at, s->fresh, s->batch, s->other, s->place, s->head, s->full};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

typedef struct {
    double when;
    i32 port;
} Opening;

static int by_opening(const void *a, const void *b) {
    const Opening *x = a, *y = b;
    if (x->when != y->when) return x->when < y->when ? -1 : 1;
    return x->port < y->port ? -1 : x->port > y->port;
}

/* From the first opening to the last arrival; as `run_turns` answers. */
static int go(State *s, const Opening *opens, double same) {
    i64 opened = 0, ports = s->turns->ports;
    for (;;) {
        double next = soonest(s), opening = opened < ports ? opens[opened].when : INFINITY;
        if (next == INFINITY && opening == INFINITY) break;
        if (opening <= next) {
            s->now = opening;
            for (; opened < ports && opens[opened].when <= opening; opened++) attempt(s, opens[opened].port, 0);
        } else {
            s->now = next;
            take_batch(s, next + same * s->usual);
        }
        if (!share_out(s)) return 2;
        if (s->failed) return 1;
    }
    for (i64 p = 0; p < ports; p++)
        if (s->flow[p].message >= 0) return 3;
    return 0;
}

int RUN(const Turns *turns, const Network *net, const char *shared, double same, double *arrived, i64 *told) {
    State *s = calloc(1, sizeof(State));
    Opening *opens = malloc((size_t)(turns->ports + 1) * sizeof *opens);
    int answer = s && opens && make(s, turns, net, shared) ? 0 : 1;
    if (!answer) {
        for (i64 p = 0; p < turns->ports; p++) {
            opens[p] = (Opening){net->opens[p], (i32)p};
            s->flow[p].message = turns->begins[p];
        }
        qsort(opens, (size_t)turns->ports, sizeof *opens, by_opening);
        s->arrived = arrived;
        answer = go(s, opens, same);
        told[0] = s->moments;
        told[1] = s->looked;
    }
    if (s) clear(s, net->none);
    free(s);
    free(opens);
    return answer;
}
