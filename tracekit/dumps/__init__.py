"""Flight-recorder dumps: reads a folder of them safely into one `DumpSet`."""
