"""Files that are either whole or absent."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name beside `path`, then rename; makes the folder when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
