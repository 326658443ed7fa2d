/* Turn connections into one of their equal shortest ways each, link by link, as a switch's hash or a rank's rail does. */
#include <stdlib.h>
#include <string.h>

#include "flows.h"

/* A `PathTable`: links by tail, straight links by tail * nodes + head, distances to targets by their column, and classes
   of targets that every other node sends towards by the same links. */
typedef struct {
    i64 nodes, links, kins;
    const i64 *head, *order, *first, *count, *column, *kin;
    const double *distance, *weight, *latency_s;
    const i32 *straight;
} Table;

/* Lists of equal links by node and class, made when first asked for and kept for other seeds. */
typedef struct {
    i32 *begin, *many, *list;
    i64 used, room;
} Lists;

void free_lists(Lists *known) {
    if (!known) return;
    free(known->begin);
    free(known->many);
    free(known->list);
    free(known);
}

/* Empty lists for so many pairs of a node and a class, or null. */
Lists *make_lists(i64 pairs) {
    Lists *known = calloc(1, sizeof(Lists));
    if (!known) return NULL;
    known->room = 1024;
    known->begin = calloc((size_t)pairs + 1, sizeof(i32));
    known->many = calloc((size_t)pairs + 1, sizeof(i32));
    known->list = malloc((size_t)known->room * sizeof(i32));
    if (known->begin && known->many && known->list) return known;
    free_lists(known);
    return NULL;
}

static inline uint64_t turned(uint64_t key) { /* the finalizer of splitmix64 */
    key = (key ^ (key >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    key = (key ^ (key >> 27)) * UINT64_C(0x94D049BB133111EB);
    return key ^ (key >> 31);
}

static int add_list(const Table *t, Lists *known, i64 here, i64 target, i64 key) {
    const double *distance = t->distance + t->column[target] * t->nodes;
    if (known->used + t->count[here] > known->room) {
        i64 room = 2 * known->room + t->count[here];
        i32 *more = realloc(known->list, (size_t)room * sizeof(i32));
        if (!more) return 0;
        known->list = more;
        known->room = room;
    }
    i64 begin = known->used;
    for (i64 i = t->first[here]; i < t->first[here] + t->count[here]; i++) {
        i64 link = t->order[i];
        if (distance[t->head[link]] + t->weight[link] == distance[here]) known->list[known->used++] = (i32)link;
    }
    known->begin[key] = (i32)begin;
    known->many[key] = (i32)(known->used - begin);
    return 1;
}

/* links: (connections, wide), filled with the number of links after the last; latency_s: the sum over each way. The
   longest way, or -1: no path, no memory; -2: one is longer than `wide`. */
int choose_ways(const Table *t, Lists *known, i64 connections, const i64 *source, const i64 *target, const uint64_t *number, int hashed,
                i64 wide, i64 *links, double *latency_s) {
    int longest = 0;
    for (i64 c = 0; c < connections && longest >= 0; c++) {
        i64 here = source[c], hop = 0;
        uint64_t left = number[c];
        double sum = 0.0;
        for (; here != target[c]; hop++) {
            i64 link = t->straight[here * t->nodes + target[c]];
            if (link < 0) {
                i64 key = here * t->kins + t->kin[target[c]];
                if (!known->many[key] && !add_list(t, known, here, target[c], key)) break;
                uint64_t many = (uint64_t)known->many[key];
                if (!many || hop >= wide) break;
                uint64_t pick = hashed ? turned(left ^ (uint64_t)here) % many : left % many;
                if (!hashed) left /= many;
                link = known->list[known->begin[key] + (i64)pick];
            } else if (hop >= wide) {
                break;
            }
            links[c * wide + hop] = link;
            sum += t->latency_s[link];
            here = t->head[link];
        }
        if (here != target[c])
            longest = hop >= wide ? -2 : -1;
        else if (hop > longest)
            longest = (int)hop;
        for (; hop < wide; hop++) links[c * wide + hop] = t->links;
        latency_s[c] = sum;
    }
    return longest;
}
