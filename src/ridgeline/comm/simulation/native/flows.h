/* Flows as the compiled core keeps them: what `native.py` hands over, as columns, and what the three units share. */
#ifndef RIDGELINE_FLOWS_H
#define RIDGELINE_FLOWS_H

#include <stdint.h>

typedef int32_t i32;
typedef int64_t i64;

/* A message in the order of ports; its chunks are rows [chunk, chunk of the next message). */
typedef struct {
    double size;
    i32 connection, chunk;
} Message;

/* A chunk of a message: the place it is read from once `needed` writes have come there, and the place it is written to.
   Places that nobody waits for are -1. */
typedef struct {
    i32 read, needed, write;
} Chunk;

/* Messages as queues of ports: port p sends groups [port_group[p], port_group[p + 1]), one after the other; group g is
   messages [group_message[g], group_message[g + 1]). `order` is each one's place in the order that came in. */
typedef struct {
    i64 messages, chunks, ports, groups, places, at_once;
    Message *message;
    Chunk *chunk;
    i32 *order, *port_group, *group_message;
} Queues;

/* Messages by round, as they came in: number, way, and rows of chunks of each. */
typedef struct {
    i64 messages, rows, ports, rounds, places;
    const i32 *port, *round, *connection;
    const double *size;
    const i64 *first, *round_row;
    const i32 *read, *write;  /* null: no chunk is sent twice, so nobody waits for any */
} Sent;

/* A message of a port that sends one a round: `next` of its port's, -1 the last. One chunk lies in it; of several
   `read` is the first row of theirs, and `more` how many follow it. */
typedef struct {
    double size;
    i32 connection, next, read, needed, write, more;
} Turn;

/* Messages of such ports in the order that they came in; `begins` is the first of each port. */
typedef struct {
    i64 messages, ports, places;
    Turn *turn;
    Chunk *chunk;
    i32 *begins;
} Turns;

/* What one seed of path choice changes. links: (connections, wide), `none` and more stand for no link. */
typedef struct {
    i64 connections, wide, none;
    const i64 *links;
    const double *share;  /* of a connection's bytes on each of its links; null: all of them */
    const double *rates, *delay;
    i64 pairs;  /* of a port and a connection that it uses */
    const i64 *pair_port, *pair_connection;
    const double *opens;  /* of each port */
} Network;

#endif
