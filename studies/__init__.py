"""Tables that reproduce published figures. Nothing in the library imports them."""
