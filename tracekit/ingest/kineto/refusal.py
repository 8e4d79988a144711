"""What the compiled scanner raises where a file is not as it knows them."""


class Unrecognised(Exception):  # noqa: N818 (no error: the general reader takes the file)
    """The file holds something that the compiled scanner leaves to the general reader."""
