"""Ways to render without a screen, chosen before a simulator is imported."""

from polyarm.display.select import Display, select

__all__ = ["Display", "select"]
