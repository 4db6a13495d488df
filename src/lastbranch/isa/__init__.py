"""Instructions: class, length and direct target, behind one interface."""
