"""Input files: which ones the user named, and their bytes, decompressed in blocks of bounded size."""
