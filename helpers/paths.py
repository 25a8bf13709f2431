"""Where the course keeps what it downloads and measures, outside the checkout so that a fresh clone finds it again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The course's cache directory, made if missing; COURSE_CACHE overrides the platform's usual place.

    Raises:
        OSError: the directory cannot be made; the message says how to name another.
    """
    path = Path(os.environ.get("COURSE_CACHE") or _usual_place())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot make the cache directory {path} ({error}); set COURSE_CACHE to one you can write"
        ) from error
    return path


def _usual_place() -> str:
    import platformdirs  # here, so that tools.gpu_check runs where only torch is installed

    return platformdirs.user_cache_dir("why-does-my-chat-slow-down")
