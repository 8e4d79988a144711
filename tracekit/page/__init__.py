"""What every page shares, of tracekit and of numerics: shell, colours, scales, style, and the script that draws."""
