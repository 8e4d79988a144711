"""What work costs in seconds and bytes on described hardware."""
