"""Ways to render without a screen, chosen before a simulator is imported."""

from polyarm.display.select import NAMES, Display, XServerMode, offer, select

__all__ = ["NAMES", "Display", "XServerMode", "offer", "select"]
