"""The command line: one file per verb group; parses, calls, prints; decides nothing."""
