from typing import Final

KINDS: Final[dict[str, int]]
ASKING: Final[dict[str, int]]
UPDATE_VERSION: Final[int]
UPDATE_CAPSULES: Final[dict[str, str]]
