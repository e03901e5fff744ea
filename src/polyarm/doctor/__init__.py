"""The doctor: what this machine has, what it lacks, and how to get it.

It never loads a driver or imports a simulator itself: whatever may crash or hang runs in a child
process with a deadline.
"""

from polyarm.doctor.case import Case
from polyarm.doctor.examination import Report, examine
from polyarm.doctor.findings import Finding

__all__ = ["Case", "Finding", "Report", "examine"]
