"""A job of weeks with interruptions: the share of its time that trains. What `reftrain goodput` prints."""
