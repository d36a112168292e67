from typing import Final

KINDS: Final[dict[str, int]]
UPDATE_VERSION: Final[int]
UPDATE_CAPSULES: Final[dict[str, str]]
