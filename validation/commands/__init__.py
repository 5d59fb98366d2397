"""One file per subcommand: `Options`, a flat dataclass cheap to import, and `main(options) -> exit code`.

Heavy imports (engines, pyarrow, matplotlib) stand inside functions: ``--help`` loads none of them.
"""
