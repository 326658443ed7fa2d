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
