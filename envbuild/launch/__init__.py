"""Pure: a stack, parameters and a place -> the commands that start a run. Nothing is run here."""
