"""The lab's qemu backend: guests and ducks in network namespaces, booted like real boxes."""
