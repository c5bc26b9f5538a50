"""Pure-function models with their SBP words: one file each, one shape each."""
