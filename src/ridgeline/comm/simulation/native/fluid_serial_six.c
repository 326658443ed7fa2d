/* The core for flows of up to six shared links (fat trees of three tiers, caps of ranks); see fluid_serial.c. */
#define SEATS 6
#define BITS 3
#define RUN run_turns_six
#include "fluid_serial.c"
