"""`python -m reftrain.replay`, see `command`."""

from reftrain.replay.command import main

main()
