/* The core for flows of up to four shared links; see moments.c. */
#define NARROW
#include "moments.c"
