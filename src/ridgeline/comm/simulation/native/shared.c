/* Links that several senders use, and which core follows the flows on them. */
#include <stdlib.h>
#include <string.h>

#include "flows.h"

int run_turns_three(const Turns *, const Network *, const char *, double, double *, i64 *);
int run_turns_six(const Turns *, const Network *, const char *, double, double *, i64 *);

/* Whether connections that leave by different ports share a link. */
int senders_share(const Network *net, const i64 *out) {
    i64 *someone = malloc((size_t)(net->none + 1) * sizeof(i64));
    int found = someone == NULL;
    if (!found) memset(someone, 0xff, (size_t)(net->none + 1) * sizeof(i64));
    for (i64 c = 0; c < net->connections && !found; c++)
        for (i64 k = 0; k < net->wide; k++) {
            i64 l = net->links[c * net->wide + k];
            if (l >= net->none) continue;
            found |= someone[l] >= 0 && someone[l] != out[c];
            someone[l] = out[c];
        }
    free(someone);
    return found;
}

/* Arrivals at max-min rates of ports that send one message at a time. 0: done; 1: no memory; 2: rates that do not
   settle; 3: messages that never start; 4: ways of too many shared links. told: moments, links looked at. */
int run_turns(const Turns *turns, const Network *net, double same, double *arrived, i64 *told) {
    i64 none = net->none, wide = net->wide, most = 0;
    i64 *someone = malloc((size_t)(none + 1) * sizeof(i64));
    char *shared = calloc((size_t)(none + 1), 1);
    int answer = someone && shared ? 0 : 1;
    if (!answer) memset(someone, 0xff, (size_t)(none + 1) * sizeof(i64));
    for (i64 i = 0; i < net->pairs && !answer; i++) {
        const i64 *links = net->links + net->pair_connection[i] * wide;
        for (i64 k = 0; k < wide; k++) {
            i64 before = someone[links[k]];
            shared[links[k]] |= (before >= 0) & (before != net->pair_port[i]);
            someone[links[k]] = net->pair_port[i];
        }
    }
    if (!answer) shared[none] = 0;
    for (i64 c = 0; c < net->connections && !answer; c++) {
        i64 count = 0;
        for (i64 k = 0; k < wide; k++) count += shared[net->links[c * wide + k]];
        most = count > most ? count : most;
    }
    if (!answer && most > 6) answer = 4;
    if (!answer) answer = (most > 3 ? run_turns_six : run_turns_three)(turns, net, shared, same, arrived, told);
    free(someone);
    free(shared);
    return answer;
}
