"""Names of the domain randomisation; the double accepts them and randomises nothing."""

from enum import Enum


class RandomizeEvery(Enum):
    EPISODE = 0
    VARIATION = 1
    TRANSITION = 1  # noqa: PIE796  an alias there too


class RandomizationConfig:
    def __init__(
        self,
        whitelist: list[str] | None = None,
        blacklist: list[str] | None = None,
        randomize_arm: bool = True,
    ) -> None:
        self.whitelist, self.blacklist = whitelist, blacklist or []
        self.randomize_arm = randomize_arm


class DynamicsRandomizationConfig(RandomizationConfig):
    pass


class VisualRandomizationConfig(RandomizationConfig):
    def __init__(self, image_directory: str, **others: object) -> None:
        super().__init__(**others)
        self.image_directory = image_directory
