/* Turn messages by round into queues by port, and count the writes that each chunk waits for. */
#include <stdlib.h>
#include <string.h>

#include "flows.h"

/* The number of a place among those seen: a table where places are few, else open addressing. */
typedef struct {
    i32 *table;
    i64 *keys;
    i64 mask, seen;
    int dense;
} Places;

static int places_init(Places *known, i64 places, i64 rows) {
    memset(known, 0, sizeof *known);
    known->dense = places <= 8 * rows + 1024;
    i64 room = places + 1;
    if (!known->dense) {
        for (room = 1024; room < 4 * rows; room *= 2) {
        }
        known->mask = room - 1;
        known->keys = malloc((size_t)room * sizeof(i64));
        if (!known->keys) return 0;
    }
    known->table = malloc((size_t)room * sizeof(i32));
    if (!known->table) return 0;
    memset(known->table, 0xff, (size_t)room * sizeof(i32));
    return 1;
}

static i32 place_number(Places *known, i64 place) {
    if (known->dense) {
        if (known->table[place] < 0) known->table[place] = (i32)known->seen++;
        return known->table[place];
    }
    i64 at = (i64)(((uint64_t)place * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & known->mask;
    while (known->table[at] >= 0 && known->keys[at] != place) at = (at + 1) & known->mask;
    if (known->table[at] < 0) {
        known->keys[at] = place;
        known->table[at] = (i32)known->seen++;
    }
    return known->table[at];
}

/* By row: the number of the place it is read from, the writes of earlier rounds to it, the number of the place written. */
static int count_writes(const Sent *sent, i32 *read, i32 *needed, i32 *write, i64 *places) {
    Places known;
    i32 *count = calloc((size_t)(2 * sent->rows + 1), sizeof(i32));
    int fine = count && places_init(&known, sent->places, sent->rows);
    if (fine) {
        for (i64 turn = 0; turn < sent->rounds; turn++) {
            i64 low = sent->round_row[turn], high = sent->round_row[turn + 1];
            for (i64 row = low; row < high; row++) {
                read[row] = place_number(&known, sent->read[row]);
                needed[row] = count[read[row]];
            }
            for (i64 row = low; row < high; row++) {
                write[row] = place_number(&known, sent->write[row]);
                count[write[row]]++;
            }
        }
        *places = known.seen;
        free(known.table);
        free(known.keys);
    }
    free(count);
    return fine;
}

/* Messages by port, in the order of rounds; a group is a port's messages of one round. */
static void by_port(const Sent *sent, Queues *made, i64 *at) {
    memset(at, 0, (size_t)(sent->ports + 1) * sizeof(i64));
    for (i64 m = 0; m < sent->messages; m++) at[sent->port[m] + 1]++;
    for (i64 p = 0; p < sent->ports; p++) at[p + 1] += at[p];
    for (i64 m = 0; m < sent->messages; m++) made->order[at[sent->port[m]]++] = (i32)m;
    i64 groups = 0, port = -1;
    i32 round = -1;
    for (i64 row = 0; row < sent->messages; row++) {
        i64 m = made->order[row];
        if (sent->port[m] != port || sent->round[m] != round) {
            while (port < sent->port[m]) made->port_group[++port] = (i32)groups;
            round = sent->round[m];
            made->group_message[groups++] = (i32)row;
        }
    }
    while (port < sent->ports) made->port_group[++port] = (i32)groups;
    made->group_message[groups] = (i32)sent->messages;
    made->groups = groups;
    made->at_once = 0;
    for (i64 p = 0; p < sent->ports; p++) {
        i64 most = 0;
        for (i64 g = made->port_group[p]; g < made->port_group[p + 1]; g++) {
            i64 one = made->group_message[g + 1] - made->group_message[g];
            if (one > most) most = one;
        }
        made->at_once += most;
    }
}

/* 0: made; 1: no memory. Arrays of `made` are the caller's: messages + 1, rows, messages, ports + 1, messages + 1. */
int make_queues(const Sent *sent, Queues *made) {
    size_t rows = (size_t)sent->rows + 1;
    i32 *read = malloc(rows * sizeof(i32)), *needed = malloc(rows * sizeof(i32)), *write = malloc(rows * sizeof(i32));
    i64 *at = malloc((size_t)(sent->ports + 2) * sizeof(i64)), places = 0;
    i32 *number = NULL;
    int fine = read && needed && write && at && count_writes(sent, read, needed, write, &places);
    if (fine) fine = (number = malloc((size_t)(places + 1) * sizeof(i32))) != NULL;
    if (fine) {
        by_port(sent, made, at);
        memset(number, 0xff, (size_t)(places + 1) * sizeof(i32));
        i64 row = 0, waited = 0;
        for (i64 m = 0; m < sent->messages; m++) {
            i64 from = made->order[m];
            made->message[m] = (Message){sent->size[from], sent->connection[from], (i32)row};
            for (i64 one = sent->first[from]; one < sent->first[from + 1]; one++, row++) {
                i32 place = -1;
                if (needed[one]) {
                    if (number[read[one]] < 0) number[read[one]] = (i32)waited++;
                    place = number[read[one]];
                }
                made->chunk[row] = (Chunk){place, needed[one], write[one]};
            }
        }
        made->message[sent->messages] = (Message){0.0, 0, (i32)row};
        for (i64 one = 0; one < row; one++) made->chunk[one].write = number[made->chunk[one].write];
        made->messages = sent->messages;
        made->chunks = row;
        made->ports = sent->ports;
        made->places = waited;
    }
    free(read);
    free(needed);
    free(write);
    free(at);
    free(number);
    return !fine;
}

/* Place of each row that somebody waits for, as a number, else -1: rows are read in rounds, so places lie in that order. */
static void number_places(const Sent *sent, Chunk *row_of, i32 *number, i64 *places) {
    for (i64 row = 0; row < sent->rows; row++) {
        Chunk *row_at = row_of + row;
        if (!row_at->needed) {
            row_at->read = -1;
            continue;
        }
        if (number[row_at->read] < 0) number[row_at->read] = (i32)(*places)++;
        row_at->read = number[row_at->read];
    }
    for (i64 row = 0; row < sent->rows; row++) row_of[row].write = number[row_of[row].write];
}

/* Chunks of all rows; 0: no memory. */
static int row_chunks(const Sent *sent, Chunk *row_of, i64 *waited) {
    i64 places = 0;
    size_t rows = (size_t)sent->rows + 1;
    i32 *read = malloc(rows * sizeof(i32)), *needed = malloc(rows * sizeof(i32)), *write = malloc(rows * sizeof(i32));
    int fine = read && needed && write && count_writes(sent, read, needed, write, &places);
    i32 *number = fine ? malloc((size_t)(places + 1) * sizeof(i32)) : NULL;
    *waited = 0;
    if (number) {
        memset(number, 0xff, (size_t)(places + 1) * sizeof(i32));
        for (i64 row = 0; row < sent->rows; row++) row_of[row] = (Chunk){read[row], needed[row], write[row]};
        number_places(sent, row_of, number, waited);
    }
    free(read);
    free(needed);
    free(write);
    free(number);
    return fine && number;
}

/* 0: made; 1: no memory; 2: a port sends two messages in a round. Arrays of `made` are the caller's: messages, rows
   (null where no chunk is waited for), ports. */
int make_turns(const Sent *sent, Turns *made) {
    i32 *last = malloc((size_t)(sent->ports + 1) * sizeof(i32));
    if (!last || (sent->read && !row_chunks(sent, made->chunk, &made->places))) {
        free(last);
        return 1;
    }
    memset(last, 0xff, (size_t)(sent->ports + 1) * sizeof(i32));
    memset(made->begins, 0xff, (size_t)sent->ports * sizeof(i32));
    int answer = 0;
    for (i64 m = 0; m < sent->messages && !answer; m++) {
        i32 port = sent->port[m], before = last[port], rows = (i32)(sent->first[m + 1] - sent->first[m]);
        Turn turn = {sent->size[m], sent->connection[m], -1, -1, 0, -1, 0};
        if (sent->read && rows == 1) {
            Chunk only = made->chunk[sent->first[m]];
            turn.read = only.read, turn.needed = only.needed, turn.write = only.write;
        } else if (sent->read) {
            turn.read = (i32)sent->first[m], turn.more = rows - 1;
        }
        made->turn[m] = turn;
        if (before < 0)
            made->begins[port] = (i32)m;
        else if (sent->round[before] == sent->round[m])
            answer = 2;
        else
            made->turn[before].next = (i32)m;
        last[port] = (i32)m;
    }
    made->messages = sent->messages;
    made->ports = sent->ports;
    free(last);
    return answer;
}
