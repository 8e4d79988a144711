"""From events of single ranks to operations that ranks share: steps, collectives, waits."""
