"""The subcommands, one file each: its options as a dataclass, and ``main(argv) -> exit code``."""
