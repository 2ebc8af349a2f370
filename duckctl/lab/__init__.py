"""The lab: a fleet of process ducks on this machine's loopback addresses, without privileges."""
