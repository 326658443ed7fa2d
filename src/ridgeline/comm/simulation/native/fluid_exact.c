/* Flows that share links at max-min rates, from one moment at which something ends to the next, exactly.

   level of a link   the most that a flow gets on it: sum of min(level, what the flow may have elsewhere) = rate;
                     infinite where the link is not full
   rate of a flow    the least level of its links

   A start or an end touches the links of one flow. Levels are set again link by link, and only the links of flows whose
   limit moved are looked at next, until none moves: that is the max-min allocation, since the scarcest link is right
   as soon as it is looked at, then the next. Most changes reach a few links. Events wait in a wheel of short ticks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "flows.h"

/* `fluid_exact_narrow.c` compiles this again for flows of up to four shared links that put all their bytes on each: loops
   over a flow's links have a fixed length there. */
#ifdef NARROW
#define SHIFT 2
#define PART(s, seat) 1.0
#define RUN run_narrow
#else
#define SHIFT (s->shift)
#define PART(s, seat) ((s)->share ? (s)->share[seat] : 1.0)
#define RUN run_wide
#endif
#define SEATS (1 << SHIFT)

#define TICKS 2048
#define NEAR 1e-12      /* relative difference of levels that counts as none */
#define PATIENCE 10000  /* times that each link may be looked at in one moment */

#define FEW 9          /* flows on a link that lie beside it: 64 bytes in all */

enum { FREE, WAITING, FLOWING, COMING };

/* What a connection has: its own limit by links that nobody shares, its delay, and the links that it shares. */
typedef struct {
    double cap, delay;
    i32 links, link[];
} Way;

/* A message under way. `when` it ends or arrives; while it waits, `tick` is the chunk that it waits for. */
typedef struct {
    double rate, when;
    i64 tick;
    i32 message, port, before, next;
    i32 connection, state, marked;
} Flow;

/* What limits a flow: its own cap and the links that it shares, the last ones none. */
typedef struct {
    double cap;
#ifdef NARROW
    i32 link[4];
#else
    i32 link[];
#endif
} Limits;

/* A link and the flows on it, as seats (flow << shift) + place of the link among the flow's. */
typedef struct {
    double rate;
    i32 *on, flows, room, marked, few[FEW];
} Link;

typedef struct {
    i32 come, waits;
} Place;

typedef struct {
    const Queues *q;
    char *ways;
    size_t stride;
    int shift;  /* a flow has 1 << shift seats at most, padded with link `none` */
    i32 none;
    Flow *flows, *flow;
    i32 *unused, unused_count;
    char *limits;
    size_t limits_stride;
    i32 *place_on;  /* by seat: place among the link's flows */
    double *share;
    const double *way_share;
    double *level;
    Link *link;
    i32 head[TICKS];
    i64 tick, hooked;
    double ticks_per_s, usual;
    i32 *dirty;
    i64 dirty_from, dirty_to, dirty_mask;
    i32 *touched, touched_count;
    Place *place;
    i32 *next_group, *under_way;
    double *other, *arrived;
    i32 *batch;
    double now;
    i64 moments, looked, patience;
    int failed;
} State;

/* Room that many ports look into at once lies on large pages, else every look misses the TLB; all zero. */
static void *wide_room(size_t bytes) {
    const size_t page = (size_t)1 << 21;
    if (bytes < page / 2) return calloc(bytes + 1, 1);
    size_t whole = (bytes + page - 1) / page * page;
    void *found = aligned_alloc(page, whole);
#ifdef MADV_HUGEPAGE
    if (found) madvise(found, whole, MADV_HUGEPAGE);
#endif
    if (found) memset(found, 0, bytes);
    return found;
}

static inline Way *way_of(const State *s, i32 connection) { return (Way *)(s->ways + (size_t)connection * s->stride); }

static inline Limits *limits_of(const State *s, i32 f) {
#ifdef NARROW
    return (Limits *)s->limits + f;
#else
    return (Limits *)(s->limits + (size_t)f * s->limits_stride);
#endif
}

static inline void unhook(State *s, i32 f) {
    Flow *a = s->flow + f;
    if (a->before >= 0)
        s->flow[a->before].next = a->next;
    else
        s->head[a->tick & (TICKS - 1)] = a->next;
    s->flow[a->next].before = a->before; /* flow -1 stands for none */
    s->hooked--;
}

static inline i64 tick_of(const State *s, double when) {
    double at = when * s->ticks_per_s;
    i64 tick = at < 4e18 ? (i64)at : (i64)4e18;
    return tick < s->tick ? s->tick : tick;
}

static inline void hook(State *s, i32 f) {
    Flow *a = s->flow + f;
    a->tick = tick_of(s, a->when);
    i32 *head = s->head + (a->tick & (TICKS - 1));
    a->before = -1;
    a->next = *head;
    s->flow[*head].before = f;
    *head = f;
    s->hooked++;
}

/* When the next event is; its tick becomes the wheel's. What was put off since it was hooked moves on. */
static double soonest(State *s) {
    if (!s->hooked) return INFINITY;
    for (i64 tried = 0;; tried++, s->tick++) {
        double found = INFINITY;
        for (i32 f = s->head[s->tick & (TICKS - 1)], next; f >= 0; f = next) {
            next = s->flow[f].next;
            if (s->flow[f].tick != s->tick) continue;
            if (tick_of(s, s->flow[f].when) > s->tick) {
                unhook(s, f);
                hook(s, f);
            } else if (s->flow[f].when < found) {
                found = s->flow[f].when;
            }
        }
        if (found < INFINITY) return found;
        if (tried == TICKS) { /* a whole turn of nothing: go to the first of all */
            i64 low = INT64_MAX;
            for (i32 b = 0; b < TICKS; b++)
                for (i32 f = s->head[b]; f >= 0; f = s->flow[f].next)
                    if (s->flow[f].tick < low) low = s->flow[f].tick;
            s->tick = low - 1;
            tried = 0;
        }
    }
}

/* Without a branch, since nobody can tell beforehand which links and flows are reached. */
static inline void mark(State *s, i32 l, int moved) {
    moved &= !s->link[l].marked;
    s->link[l].marked |= moved;
    s->dirty[s->dirty_to & s->dirty_mask] = l;
    s->dirty_to += moved;
}

static inline void touch(State *s, i32 f) {
    s->touched[s->touched_count] = f;
    s->touched_count += !s->flow[f].marked;
    s->flow[f].marked = 1;
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

/* What a port sends next is brought near while this message flows. */
static inline void fetch_next(const State *s, i32 message) {
    const Message *next = s->q->message + message + 1;
    const Chunk *chunk = s->q->chunk + next->chunk;
    __builtin_prefetch(next + 6);
    __builtin_prefetch(chunk + 8);
    __builtin_prefetch(way_of(s, next->connection));
    __builtin_prefetch(s->arrived + message + 8, 1);
    if (chunk->needed) __builtin_prefetch(s->place + chunk->read + 4, 1);
    if (chunk->write >= 0) __builtin_prefetch(s->place + chunk->write, 1);
}

static void start(State *s, i32 f) {
    Flow *a = s->flow + f;
    const Message *m = s->q->message + a->message;
    const Way *way = way_of(s, m->connection);
    Limits *limits = limits_of(s, f);
    i32 seats = SEATS;
    a->connection = m->connection;
    a->rate = 0.0;
    a->when = s->now;
    a->state = FLOWING;
    limits->cap = way->cap;
    for (i32 k = 0; k < way->links; k++) {
        i32 l = way->link[k], at = (f << SHIFT) + k;
        Link *link = s->link + l;
        limits->link[k] = l;
        if (link->flows == link->room && !more_room(link)) {
            s->failed = 1;
            return;
        }
        s->place_on[at] = link->flows;
        link->on[link->flows++] = at;
        mark(s, l, link->flows > 1);
    }
    for (i32 k = way->links; k < seats; k++) limits->link[k] = s->none;
#ifndef NARROW
    if (s->share) {
        i64 wide = (i64)SEATS;
        const double *from = s->way_share + m->connection * wide;
        memcpy(s->share + f * wide, from, (size_t)way->links * sizeof(double));
    }
#endif
    touch(s, f);
    fetch_next(s, a->message);
}

static void leave(State *s, i32 f) {
    const Limits *limits = limits_of(s, f);
    for (i32 k = 0; k < SEATS && limits->link[k] < s->none; k++) {
        i32 l = limits->link[k], place = s->place_on[(f << SHIFT) + k];
        Link *link = s->link + l;
        i32 last = link->on[--link->flows];
        link->on[place] = last;
        s->place_on[last] = place;
        mark(s, l, s->level[l] < INFINITY); /* what was not full is not full now */
    }
}

/* Let a message flow, or wait for the first chunk that it lacks. */
static void attempt(State *s, i32 f, i64 row) {
    Flow *a = s->flow + f;
    i64 end = s->q->message[a->message + 1].chunk;
    for (; row < end; row++) {
        const Chunk *chunk = s->q->chunk + row;
        if (chunk->needed && s->place[chunk->read].come < chunk->needed) {
            a->state = WAITING;
            a->tick = row;
            a->next = s->place[chunk->read].waits;
            s->place[chunk->read].waits = f;
            return;
        }
    }
    start(s, f);
}

static void open_group(State *s, i32 port) {
    const Queues *q = s->q;
    if (s->next_group[port] == q->port_group[port + 1]) return;
    i32 group = s->next_group[port]++, end = q->group_message[group + 1];
    s->under_way[port] = end - q->group_message[group];
    for (i32 m = q->group_message[group]; m < end; m++) {
        i32 f = s->unused[--s->unused_count];
        s->flow[f].message = m;
        s->flow[f].port = port;
        attempt(s, f, q->message[m].chunk);
    }
}

static void arrive(State *s, i32 f) {
    const Queues *q = s->q;
    i32 m = s->flow[f].message, port = s->flow[f].port;
    s->arrived[m] = s->flow[f].when;
    s->flow[f].state = FREE;
    s->unused[s->unused_count++] = f;
    for (i64 row = q->message[m].chunk; row < q->message[m + 1].chunk; row++) {
        if (q->chunk[row].write < 0) continue;
        Place *place = s->place + q->chunk[row].write;
        place->come++;
        i32 waits = place->waits;
        place->waits = -1;
        while (waits >= 0) {
            i32 next = s->flow[waits].next;
            attempt(s, waits, s->flow[waits].tick);
            waits = next;
        }
    }
    if (--s->under_way[port] == 0) open_group(s, port);
}

/* The most that flow `f` may have on links other than the `skip`th of it. */
static inline double elsewhere(const State *s, i32 f, i32 skip) {
    const Limits *limits = limits_of(s, f);
    double least = limits->cap;
    if (SHIFT == 2) {
        double v[5];
        for (i32 k = 0; k < 4; k++) v[k] = s->level[limits->link[k]];
        v[skip] = INFINITY;
        double a = v[0] < v[1] ? v[0] : v[1], b = v[2] < v[3] ? v[2] : v[3];
        a = a < b ? a : b;
        return a < least ? a : least;
    }
    for (i32 k = 0; k < SEATS; k++) {
        double level = k == skip ? INFINITY : s->level[limits->link[k]];
        least = level < least ? level : least;
    }
    return least;
}

/* The level at which a link is full, from what its flows may have elsewhere (kept in `other`). */
static double full_level(State *s, const Link *link) {
    const i32 *on = link->on;
    i32 n = link->flows, mask = SEATS - 1;
    if (n == 2 && PART(s, on[0]) == 1.0 && PART(s, on[1]) == 1.0) { /* the usual case, without a loop */
        double a = elsewhere(s, on[0] >> SHIFT, on[0] & mask), b = elsewhere(s, on[1] >> SHIFT, on[1] & mask);
        double less = a < b ? a : b, half = 0.5 * link->rate, rest = link->rate - less;
        s->other[0] = a;
        s->other[1] = b;
        double level = rest > half ? rest : half;
        return a + b <= link->rate * (1 + NEAR) ? INFINITY : level;
    }
    double sum = 0.0, weight = 0.0;
    for (i32 e = 0; e < n; e++) {
        double part = PART(s, on[e]);
        s->other[e] = elsewhere(s, on[e] >> SHIFT, on[e] & mask);
        sum += part * s->other[e];
        weight += part;
    }
    if (sum <= link->rate * (1 + NEAR)) return INFINITY;
    double level = link->rate / weight;
    for (;;) {
        double rest = link->rate, held = 0.0;
        for (i32 e = 0; e < n; e++) {
            double part = PART(s, on[e]);
            double more = s->other[e] <= level ? 0.0 : part;
            held += more;
            rest -= (part - more) * (more > 0.0 ? 0.0 : s->other[e]);
        }
        if (held <= 0.0 || rest <= level * held * (1 + NEAR)) return level;
        level = rest / held;
    }
}

/* Set a link's level; where it moved, look next at the links of flows whose limit moved with it. */
static void settle(State *s, i32 l) {
    Link *link = s->link + l;
    double before = s->level[l], level = INFINITY;
    i32 mask = SEATS - 1;
    const i32 *on = link->on;
    if (link->flows > 1) level = full_level(s, link); /* one flow alone is held by its cap */
    double low = before < level ? before : level;
    double high = before > level ? before : level;
    if (low == high || high - low <= NEAR * low) return;
    s->level[l] = level;
    if (link->flows == 1) s->other[0] = elsewhere(s, on[0] >> SHIFT, on[0] & mask);
    for (i32 e = 0; e < link->flows; e++) {
        i32 f = on[e] >> SHIFT, k = on[e] & mask, seats = SEATS;
        if (s->other[e] <= low) continue; /* limited elsewhere, as before */
        touch(s, f);
        const i32 *others = limits_of(s, f)->link;
        for (i32 j = 0; j < seats; j++) { /* a full link, or one that may fill up */
            i32 o = others[j];
            int full = s->level[o] < INFINITY, fills = (level > before) & (s->link[o].flows > 1);
            mark(s, o, (full | fills) & (j != k));
        }
    }
}

/* Max-min rates after what began and ended; 0 where levels do not settle. */
static int share_out(State *s) {
    i64 most = s->looked + s->patience;
    s->moments++;
    while (s->dirty_from != s->dirty_to) {
        i32 l = s->dirty[s->dirty_from++ & s->dirty_mask];
        s->link[l].marked = 0;
        settle(s, l);
        if (++s->looked > most) return 0;
    }
    for (i32 i = 0; i < s->touched_count; i++) {
        i32 f = s->touched[i];
        Flow *a = s->flow + f;
        a->marked = 0;
        if (a->state != FLOWING) continue;
        double rate = elsewhere(s, f, SEATS);
        if (rate == a->rate) continue;
        int fresh = a->rate == 0.0;
        if (fresh)
            a->when += s->q->message[a->message].size / rate;
        else
            a->when = s->now + (a->when - s->now) * (a->rate / rate);
        a->rate = rate;
        if (fresh) {
            hook(s, f);
        } else if (tick_of(s, a->when) < a->tick) { /* what is put off is found and moved in its old tick */
            unhook(s, f);
            hook(s, f);
        }
    }
    s->touched_count = 0;
    return 1;
}

/* All events within `same` of the next one. */
static void take_batch(State *s, double until) {
    i32 count = 0;
    for (i32 f = s->head[s->tick & (TICKS - 1)]; f >= 0; f = s->flow[f].next)
        if (s->flow[f].tick == s->tick && s->flow[f].when <= until) s->batch[count++] = f;
    for (i32 i = 0; i < count; i++) {
        i32 f = s->batch[i];
        Flow *a = s->flow + f;
        unhook(s, f);
        if (a->state == FLOWING) {
            leave(s, f);
            a->state = COMING;
            a->when += way_of(s, a->connection)->delay;
            hook(s, f);
        } else {
            arrive(s, f);
        }
    }
}

/* Links that two ports use (or, of ports with several messages at once, two connections) are shared: by link, or null. */
static char *shared_links(const Network *net, int lone) {
    i64 none = net->none, wide = net->wide;
    i64 *someone = malloc((size_t)(none + 1) * sizeof(i64));
    char *shared = calloc((size_t)(none + 1), 1);
    if (!someone || !shared) {
        free(someone);
        free(shared);
        return NULL;
    }
    memset(someone, 0xff, (size_t)(none + 1) * sizeof(i64));
    for (i64 i = 0; i < net->pairs; i++) {
        const i64 *links = net->links + net->pair_connection[i] * wide;
        i64 user = lone ? net->pair_port[i] : i;
        for (i64 k = 0; k < wide; k++) {
            if (links[k] >= none) continue;
            if (someone[links[k]] >= 0 && someone[links[k]] != user) shared[links[k]] = 1;
            someone[links[k]] = user;
        }
    }
    free(someone);
    return shared;
}

#ifndef NARROW
int run_wide(const Queues *q, const Network *net, double same, double *arrived, i64 *told);

int run_narrow(const Queues *q, const Network *net, double same, double *arrived, i64 *told);

/* Arrivals at max-min rates, in the order that messages came in. 0: done; 1: no memory; 2: rates that do not settle;
   3: messages that never start. told: moments, links looked at. */
int run_moments(const Queues *q, const Network *net, double same, double *arrived, i64 *told) {
    return net->wide <= 4 && !net->share ? run_narrow(q, net, same, arrived, told)
                                         : run_wide(q, net, same, arrived, told);
}
#endif

/* Each connection's cap, delay and shared links. */
static int lay(State *s, const Network *net, int lone) {
    i64 none = net->none, wide = net->wide, most = 1;
    char *shared = shared_links(net, lone);
    if (!shared) return 0;
    for (i64 c = 0; c < net->connections; c++) {
        i64 count = 0;
        for (i64 k = 0; k < wide; k++) count += net->links[c * wide + k] < none && shared[net->links[c * wide + k]];
        if (count > most) most = count;
    }
    s->shift = 2;
    while (((i64)1 << s->shift) < most) s->shift++;
    s->none = (i32)none;
    s->stride = (sizeof(Way) + (size_t)most * sizeof(i32) + 7) / 8 * 8;
    s->ways = wide_room(((size_t)net->connections + 1) * s->stride);
    double *parts = NULL;
    if (net->share) {
        parts = calloc((size_t)net->connections << SHIFT, sizeof(double));
        s->way_share = parts;
    }
    if (!s->ways || (net->share && !parts)) {
        free(shared);
        return 0;
    }
    for (i64 c = 0; c < net->connections; c++) {
        Way *way = way_of(s, (i32)c);
        way->cap = INFINITY;
        way->delay = net->delay[c];
        for (i64 k = 0; k < wide; k++) {
            i64 l = net->links[c * wide + k];
            double part = net->share ? net->share[c * wide + k] : 1.0;
            if (l >= none || part <= 0.0) continue;
            if (net->rates[l] / part < way->cap) way->cap = net->rates[l] / part;
            if (!shared[l]) continue;
            if (parts) parts[(c << SHIFT) + way->links] = part;
            way->link[way->links++] = (i32)l;
        }
    }
    for (i64 l = 0; l <= none; l++) {
        s->link[l] = (Link){.rate = net->rates[l], .room = FEW};
        s->link[l].on = s->link[l].few;
        s->level[l] = INFINITY;
    }
    free(shared);
    return 1;
}

static int by_opening(const void *a, const void *b) {
    const double *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* How long a message takes by itself, the mean of some. */
static double usual_s(const State *s) {
    i64 every = s->q->messages / 4096 + 1, count = 0;
    double sum = 0.0;
    for (i64 m = 0; m < s->q->messages; m += every, count++)
        sum += s->q->message[m].size / way_of(s, s->q->message[m].connection)->cap;
    return sum > 0.0 ? sum / (double)count : 1e-9;
}

static int make(State *s, const Queues *q, const Network *net) {
    size_t flows = (size_t)q->at_once + 1, ports = (size_t)q->ports + 1;
    s->q = q;
    memset(s->head, 0xff, sizeof s->head);
    s->patience = PATIENCE * (net->none + 16);
    s->link = calloc((size_t)(net->none + 1), sizeof(Link));
    s->level = malloc((size_t)(net->none + 1) * sizeof(double));
    if (!s->link || !s->level || !lay(s, net, q->messages == q->groups)) return 0;
#ifdef NARROW
    if (s->shift > 2 || net->share) return 0;
#endif
    s->usual = usual_s(s);
    s->ticks_per_s = (double)q->at_once / s->usual;
    i64 queue = 16;
    while (queue < net->none + 1) queue *= 2;
    s->dirty_mask = queue - 1;
    s->dirty = malloc((size_t)queue * sizeof(i32));
    s->flows = calloc(flows + 1, sizeof(Flow));
    s->flow = s->flows + 1;
    s->unused = malloc(flows * sizeof(i32));
    s->limits_stride = sizeof(Limits) + sizeof(i32) * ((size_t)SEATS);
    s->limits = malloc(flows * s->limits_stride);
    s->place_on = malloc((flows << SHIFT) * sizeof(i32));
    if (net->share) s->share = malloc((flows << SHIFT) * sizeof(double));
    s->touched = malloc(flows * sizeof(i32));
    s->batch = malloc(flows * sizeof(i32));
    s->other = malloc(flows * sizeof(double));
    s->place = wide_room((size_t)(q->places + 1) * sizeof(Place));
    s->arrived = wide_room((size_t)(q->messages + 1) * sizeof(double));
    s->next_group = malloc(ports * sizeof(i32));
    s->under_way = calloc(ports, sizeof(i32));
    if (!s->dirty || !s->flows || !s->unused || !s->limits || !s->place_on || (net->share && !s->share) || !s->touched || !s->batch ||
        !s->other || !s->place || !s->arrived || !s->next_group || !s->under_way)
        return 0;
    for (i64 p = 0; p < q->places; p++) s->place[p] = (Place){0, -1};
    memcpy(s->next_group, q->port_group, (size_t)q->ports * sizeof(i32));
    for (s->unused_count = 0; s->unused_count < q->at_once; s->unused_count++)
        s->unused[s->unused_count] = (i32)(q->at_once - 1 - s->unused_count);
    return 1;
}

static void clear(State *s, i64 links) {
    for (i64 l = 0; s->link && l <= links; l++)
        if (s->link[l].on != s->link[l].few) free(s->link[l].on);
    void *parts[] = {s->ways, s->level,  s->flows,  s->unused, s->limits, s->place_on,  s->share,      (void *)s->way_share, s->link,
                     s->dirty, s->touched, s->place, s->arrived, s->next_group, s->under_way, s->other, s->batch};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
}

int RUN(const Queues *q, const Network *net, double same, double *arrived, i64 *told) {
    State *s = calloc(1, sizeof(State));
    double(*opens)[2] = malloc((size_t)(q->ports + 1) * sizeof *opens);
    int answer = s && opens && make(s, q, net) ? 0 : 1;
    if (!answer) {
        for (i64 p = 0; p < q->ports; p++) opens[p][0] = net->opens[p], opens[p][1] = (double)p;
        qsort(opens, (size_t)q->ports, sizeof *opens, by_opening);
        i64 opened = 0;
        while (!answer) {
            double next = soonest(s), opening = opened < q->ports ? opens[opened][0] : INFINITY;
            if (next == INFINITY && opening == INFINITY) break;
            if (opening <= next) {
                s->now = opening;
                for (; opened < q->ports && opens[opened][0] <= opening; opened++)
                    open_group(s, (i32)opens[opened][1]);
            } else {
                s->now = next;
                take_batch(s, next + same * s->usual);
            }
            if ((s->dirty_from != s->dirty_to || s->touched_count) && !share_out(s)) answer = 2;
            if (s->failed) answer = 1;
        }
        for (i64 p = 0; p < q->ports && !answer; p++)
            if (s->under_way[p] || s->next_group[p] != q->port_group[p + 1]) answer = 3;
        for (i64 m = 0; m < q->messages; m++) arrived[q->order[m]] = s->arrived[m];
        told[0] = s->moments;
        told[1] = s->looked;
    }
    if (s) clear(s, net->none);
    free(s);
    free(opens);
    return answer;
}
