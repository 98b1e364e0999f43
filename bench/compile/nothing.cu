// What the compiler takes for no program at all.
