"""`python -m tracekit` is the program `tracekit`."""

from importlib import import_module

if __name__ == "__main__":
    import_module("tracekit_cli.tracekit").main()  # by name: the library knows no commands
