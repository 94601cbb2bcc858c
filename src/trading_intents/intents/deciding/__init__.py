"""The rule by which a command is accepted, replayed or refused. Pure: no I/O, no clock."""
