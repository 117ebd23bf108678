"""The public names, for type checkers; `__init__.py` imports each when it is first asked for."""

from .any_step.instrument import instrument
from .any_step.training import Training
from .detection.activation_range import ActivationRange
from .detection.asd import Asd
from .detection.asd_v1 import AsdV1
from .detection.asd_v3 import AsdV3
from .detection.checksum import Checksum, UnconfirmedChecksum, VarianceChecksum
from .detection.dr_dna import DrDna, DrDnaPublished
from .detection.history_bound import HistoryBound
from .detection.nonfinite import NonFinite
from .detection.spike import GradientNorm, LossSpike
from .detection.transformation import alarms, watch
from .faults.injection import Injection
from .machine.errors import InputError
from .models.fault import Fault, Operand, inactive_fault
from .models.site import make_fault
from .runs.replay_run import golden_for, replay
from .seam.measure import Measure
from .workloads.registry import make_workload

__all__ = [
    "ActivationRange",
    "Asd",
    "AsdV1",
    "AsdV3",
    "Checksum",
    "DrDna",
    "DrDnaPublished",
    "Fault",
    "GradientNorm",
    "HistoryBound",
    "Injection",
    "InputError",
    "LossSpike",
    "Measure",
    "NonFinite",
    "Operand",
    "Training",
    "UnconfirmedChecksum",
    "VarianceChecksum",
    "alarms",
    "golden_for",
    "inactive_fault",
    "instrument",
    "make_fault",
    "make_workload",
    "replay",
    "watch",
]
__version__: str
