"""Checkpoints: an engine in the middle of a run, everything in flight included."""

import os
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from model.engine import Engine
from spec.errors import InputError


@dataclass(frozen=True)
class Progress:
    """How far a run was: turns of its training phase, and its accuracy before training."""

    turns: int
    accuracy_before: float | None


def save_checkpoint(path: Path, engine: Engine, progress: Progress) -> None:
    """Write to a temporary name beside `path`, then rename: a checkpoint is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    content = {
        **_identity(engine),
        "turns": progress.turns,
        "accuracy_before": progress.accuracy_before,
        "engine": engine.state(),
    }
    torch.save(content, temporary)
    os.replace(temporary, path)


def load_checkpoint(path: Path, engine: Engine) -> Progress:
    """Bring `engine` to where it was saved; the run hash may differ, the hardware hash may not.

    Raises InputError when the file is no checkpoint, or one of other hardware or arithmetic.
    """
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except OSError as error:
        raise InputError(f"cannot read checkpoint {path}: {error.strerror}") from None
    except (RuntimeError, UnpicklingError, EOFError, ValueError):
        raise InputError(f"{path} is not a checkpoint") from None
    if not isinstance(content, dict) or not {"engine", *_identity(engine)} <= content.keys():
        raise InputError(f"{path} is not a checkpoint")
    for key in ("hardware_hash", "arithmetic"):
        if content[key] != _identity(engine)[key]:
            raise InputError(
                f"{path} has {key} {content[key]}, but this run has {_identity(engine)[key]}"
            )
    engine.load_state(content["engine"])
    return Progress(content["turns"], content["accuracy_before"])


def _identity(engine: Engine) -> dict[str, str]:
    return {
        "hardware_hash": engine.plan.hardware.hash,
        "run_hash": engine.plan.run_hash,
        "arithmetic": engine.arithmetic.name,
    }
