"""A defect profile: which operations a faulty device gets wrong, at which operands, by how much, and for how long.

A fault model says which positions one fault overwrites.  A profile says how a device errs: what it strikes is decided
in the step, by the values of the operand.  The words of its rule are `models.rule.StrikeRule`.
"""

import dataclasses
import math
import pathlib
import zlib
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from ...machine.reading import matches
from ...models.bits import ALL_ONES, NewBits, host_words, mask_type
from ...models.fault import Operand
from ...models.rule import EVERY_ELEMENT, StrikeRule
from ...models.site import Site
from ...seam.workload import Workload
from ..fault_models import VALUES
from ..number_formats import Format, format_of
from ..schedule import ONCE, Schedule

# Sources of values that give all struck elements the same masks, drawn once for the device.
DRAWN = ("measured", "bit_flip", "stuck", "random_finite", "worst_case", "zero")
PASSES = ("forward", "backward")
NORMAL = 2.0  # a relative error leaves numbers below so many times the smallest normal one: XLA on CPUs flushes them


@dataclasses.dataclass(frozen=True)
class Error:
    """What becomes of a struck element: exactly one of these.

    Attributes:
      xor: roles of the bits that are inverted, such as `exponent 3`; each is that bit in every format.
      mask: the same as a mask of one format.
      set: the number that it becomes.
      relative: its number is multiplied by one plus this.
      neighbour: it becomes the element so many positions further on.
      values: one of `DRAWN`: masks that are drawn once for the device.
      bits: roles of the bits of which a `bit_flip` or `stuck` draws one.
    """

    xor: tuple[str, ...] = ()
    mask: int = 0
    set: float | None = None
    relative: float = 0.0
    neighbour: int = 0
    values: str = ""
    bits: tuple[str, ...] = ()

    def sentence(self) -> str:
        """What becomes of the elements, after "they"."""
        if self.xor:
            return f"have {' and '.join(self.xor)} inverted"
        if self.mask:
            return f"have the bits {self.mask:x} inverted"
        if self.set is not None:
            return f"become {self.set!r}"
        if self.relative:
            return f"are wrong by {self.relative:+g} of themselves"
        if self.neighbour:
            return f"become the element {self.neighbour:+d} positions on"
        of = f" of {', '.join(self.bits)}" if self.bits else ""
        return f"get what '{self.values}'{of} draws, all alike"


@dataclasses.dataclass(frozen=True)
class DefectProfile:
    """How one faulty device errs.

    Attributes:
      name: of the shipped profile, or the path of its file, as an injection file writes it.
      summary, source, inferred: sentences: what it is, who observed it, and what of it nobody did.
      operand: the operand struck.
      kinds: patterns of kinds of operations, as `sites` lists them.
      passes: of `PASSES`.
      formats: names of operands' types; empty for all.
      operations: share of the matching operations, where a file names none.
      least, below: the band of magnitudes, `least ≤ |x| < below`; without `below` it contains infinities and NaN.
      periods: of the positions struck, one of which is drawn; 1 strikes all.
      phase: of the positions; None is drawn.
      elements: share of the elements that are left.
      error: what becomes of them.
      schedule: when the device errs again.
      growing: strikes until `elements` is reached.
      worker: the worker that has the device; None leaves it open.
    """

    name: str
    summary: str
    source: str
    inferred: str
    error: Error
    operand: Operand = Operand.OUTPUT
    kinds: tuple[str, ...] = ("*",)
    passes: tuple[str, ...] = PASSES
    formats: tuple[str, ...] = ()
    operations: float = 1.0
    least: float = 0.0
    below: float | None = None
    periods: tuple[int, ...] = (1,)
    phase: int | None = None
    elements: float = 1.0
    schedule: Schedule = ONCE
    growing: int = 1
    worker: int | None = None

    def refuses(self, site: Site, workload: Workload) -> str | None:
        """Why the device does not err in an operation of a workload; None where it does."""
        if site.stage not in PASSES:
            return "a profile strikes operations, and this is none"
        for one in site.operands.values():
            if not format_of(one.dtype).exponent:
                return "it reads whole numbers, and a profile strikes products of floating-point numbers"
            if (why := _without_order(format_of(one.dtype))) is not None:
                return why
        if site.stage not in self.passes:
            return f"it is of the {site.stage} pass, and the profile of the {' and '.join(self.passes)} pass"
        kind = workload.kind(site)
        if not matches(kind, self.kinds):
            return f"its kind is {kind!r}, and the profile's are {', '.join(self.kinds)}"
        dtype = np.dtype(site.operands[self.operand].dtype)
        if self.formats and dtype.name not in self.formats:
            return (
                f"its {self.operand.name.lower()} is {dtype.name}, and the profile's formats {', '.join(self.formats)}"
            )
        format = format_of(dtype)
        for role in (*self.error.xor, *self.error.bits):
            if format.bit(role) is None:
                return f"a {format.name} has no bit {role!r}, which the profile names"
        if self.error.mask >> format.width:
            return f"the profile's mask {self.error.mask:x} has more than the {format.width} bits of a {format.name}"
        return self._beyond(format)

    def _beyond(self, format: Format) -> str | None:
        """Why an element of a format cannot become what the profile sets; None where it can."""
        number = self.error.set
        if number is None:
            return None
        if math.isinf(number):
            return None if format.infinite else f"a {format.name} has no infinities, and the profile sets one"
        if math.isnan(number):
            known = math.isnan(format.values(format.bits([number]))[0])
            return None if known else f"a {format.name} has no NaN, and the profile sets one"
        expected = format.beyond(number, number == 0)
        return None if expected is None else f"the profile sets {number:g}; expected {expected}"

    def matching(self, workload: Workload) -> dict[str, Site]:
        """The operations of a workload in which the device errs."""
        return {name: site for name, site in workload.sites().items() if not self.refuses(site, workload)}

    def chosen(self, workload: Workload, draw: int) -> dict[str, Site]:
        """The share `operations` of the matching ones, at least one if any matches; all of them for 1."""
        sites = self.matching(workload)
        if self.operations == 1 or not sites:
            return sites
        each = {
            name: np.random.default_rng([*self._address(draw), zlib.crc32(name.encode())]).random() for name in sites
        }
        kept = [name for name in sites if each[name] < self.operations] or [min(each, key=lambda name: each[name])]
        return {name: sites[name] for name in kept}

    def _address(self, draw: int) -> tuple[int, int]:
        """Of what is drawn: a file draws alike from wherever it is read."""
        return zlib.crc32(pathlib.PurePath(self.name).name.removesuffix(".toml").encode()), draw

    def rule(self, site: Site, draw: int) -> np.ndarray:
        """The words of its rule at an operation.

        Args:
          draw: tells devices of one profile apart: which lane, and which bits, where the profile leaves that open.

        >>> from fault_injection.models.site import TensorSpec
        >>> one = TensorSpec((4,), np.dtype("float32"))
        >>> site = Site("fc", "fc", "forward", dict.fromkeys(Operand, one))
        >>> error = Error(relative=0.25)
        >>> band = DefectProfile("band", "", "", "", error, least=1.0, below=2.0)
        >>> rule = StrikeRule(*band.rule(site, 0))
        >>> hex(rule.least), hex(rule.most), np.uint32(rule.factor).view(np.float32).item()
        ('0x3f800000', '0x3fffffff', 1.25)
        """
        format, rng = format_of(site.operands[self.operand].dtype), np.random.default_rng(self._address(draw))
        period = int(rng.choice(self.periods))
        phase = int(rng.integers(period)) if self.phase is None else self.phase
        masks, factor = self._masks(rng, format)
        least, most = self._band(format)
        threshold = min(max(round(self.elements * 2**32) - 1, 0), EVERY_ELEMENT)
        size = math.prod(site.operands[self.operand].shape)
        words = StrikeRule(
            least=least,
            most=most,
            period=period,
            phase=phase,
            seed=int(rng.integers(2**32)) ^ zlib.crc32(site.name.encode()),
            threshold=threshold,
            offset=self.error.neighbour % max(size, 1),
            keep=int(masks.keep[0]),
            flip=int(masks.flip[0]),
            factor=factor,
            growing=self.growing,
        )
        return words.words(mask_type(format.dtype))

    def _masks(self, rng: np.random.Generator, format: Format) -> tuple[NewBits, int]:
        """Masks of one element, and the bits of a factor."""
        error, first = self.error, np.zeros(1, np.int64)
        if error.set is not None:
            return NewBits.given(first, format.bits([error.set])), 0
        if error.values:
            options = (tuple(format.bit(role) or 0 for role in error.bits),) if error.bits else ()
            return VALUES[error.values](*options)(rng, first, 1, format), 0
        factor = 0
        if error.relative:
            wide = np.float64 if format.width > 32 else np.float32
            factor = int(host_words(np.array(1 + error.relative, wide)))
        mask = error.mask
        for role in error.xor:
            mask |= 1 << (format.bit(role) or 0)
        return NewBits.inverted(first, format.mask(mask)), factor

    def _band(self, format: Format) -> tuple[int, int]:
        """The smallest and the largest magnitude struck, as bits; of a relative error, finite normal numbers alone."""
        every = (ALL_ONES >> (64 - format.width)) >> 1
        least, most = _at_least(self.least, format), every
        if self.below is not None:
            most = _at_least(self.below, format) - 1
        if self.error.relative:
            smallest = NORMAL * float(ml_dtypes.finfo(format.name).smallest_normal)
            least, most = max(least, _at_least(smallest, format)), min(most, int(format.bits([format.largest])[0]))
        return (least, most) if least <= most else (1, 0)

    def sentence(self) -> str:
        """What it does to the operand that it strikes, in a few words."""
        band = "" if self.below is None and not self.least else f" with {self.least:g} ≤ |x|"
        band += "" if self.below is None else f" < {self.below:g}"
        every = "" if self.periods == (1,) else f", one in {' or '.join(map(str, self.periods))} by position"
        share = "" if self.elements == 1 else f", a share of {self.elements:g} of these"
        if self.growing > 1:
            share = f", a share of these that grows to {self.elements:g} in {self.growing} strikes,"
        return f"elements{band}{every}{share} {self.error.sentence()}"

    def as_json(self) -> Mapping[str, object]:
        """All that it says but for its sentences, as what faults depend on."""
        known = dataclasses.asdict(self)
        for said in ("summary", "source", "inferred"):
            del known[said]
        number = self.error.set
        known["error"]["set"] = None if number is None else repr(number)  # JSON has no infinity
        return known | {"operand": self.operand.name.lower(), "schedule": str(self.schedule)}


def _without_order(format: Format) -> str | None:
    """Why the magnitudes of a format are no order in which a NaN is the largest; None where they are.

    >>> _without_order(format_of("bfloat16")), _without_order(format_of("float8_e4m3fnuz"))
    (None, 'a float8_e4m3fnuz has its NaN in place of -0, and no band holds it')
    """
    if float(ml_dtypes.finfo(format.name).min) >= 0:
        return f"a {format.name} has no sign, and a profile strikes numbers that have one"
    if math.isnan(format.values([1 << (format.width - 1)])[0]):
        return f"a {format.name} has its NaN in place of -0, and no band holds it"
    return None


def _at_least(number: float, format: Format) -> int:
    """The bits of the smallest number of a format that is not below `number`, which is not negative."""
    found = int(format.bits([min(number, format.largest)])[0])
    value = float(format.values([found])[0])
    if value < number:
        return found + 1  # the next one; after the largest, infinity or a NaN
    return found
