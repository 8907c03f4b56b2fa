"""``python -m kvrm``: the same as the ``kvrm`` command."""

from kvrm.main import main

if __name__ == "__main__":
    main()
