// The part that knows torch, as one unit: its headers cost more than the code.
#include "process_group.inc"
#include "rendezvous.inc"
#include "work.inc"
