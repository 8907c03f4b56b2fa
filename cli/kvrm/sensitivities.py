"""placeholder"""


def command() -> None:
    """Not yet."""
