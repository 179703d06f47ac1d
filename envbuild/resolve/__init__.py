"""Pure: facts x lock variants x compatibility data -> Resolution."""
