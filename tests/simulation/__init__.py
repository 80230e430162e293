"""Random walks of all verbs: real stores beside an obviously correct model, and beside each other."""
