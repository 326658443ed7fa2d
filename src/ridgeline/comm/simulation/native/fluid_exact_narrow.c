/* The core for flows of up to four shared links; see fluid_exact.c. */
#define NARROW
#include "fluid_exact.c"
