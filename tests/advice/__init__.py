"""What messages advise is tried: whoever does what a refusal says gets further."""
