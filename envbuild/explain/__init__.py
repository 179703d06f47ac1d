"""What is wrong with a stack's document, what was decided, and how what is built differs; and checks of all that."""
