"""From bare boxes to a ready fleet, and back to it after a reboot."""
