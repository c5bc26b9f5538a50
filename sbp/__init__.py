"""sbp: from a pure function to one SPMD program, by the words Split, Broadcast and Partial."""
