"""What each duck is doing and has done: a pure state machine, and one SQLite file of history."""
