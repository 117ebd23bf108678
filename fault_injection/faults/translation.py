"""The same logical fault in another number format."""

import dataclasses
from collections.abc import Sequence

from ..machine.errors import InputError
from ..models.bits import ALL_ONES
from .element_bits import ElementBits
from .injection import Injection
from .number_formats import Format, format_of


def translate(injection: Injection, precision: str) -> Injection:
    """The injection in its workload with another `precision`: the same elements, and the same change of each.

    Inverted and stuck bits keep their roles: the sign, the k-th bit of the exponent from the top, the k-th of
    the mantissa from the top.  Values, and bits that replace an element's own, become the nearest
    number of the new format, which may be infinite or NaN.  Copies stay copies.  An operand of
    integers stays as it is.  A profile says itself what it does in each format.

    Args:
      precision: key of `models.precisions.PRECISIONS`.

    Raises:
      InputError: the new format has no bit of a role, or is none that the profile strikes.

    >>> from fault_injection.faults.injection_file import read_injection
    >>> old = read_injection("injections/published/resnet18_nobn-slow_degrade.csv")
    >>> old.values, translate(old, "bfloat16").values
    ((1.57807140340843e+17,), (1.5762598695796736e+17,))
    """
    if injection.also:
        return injection.changed(lambda one: translate(one, precision))
    moved = dataclasses.replace(injection, workload=injection.workload.changed(precision=precision))
    if injection.profile is not None:
        if (why := injection.profile.refuses(moved.site, moved.workload)) is not None:
            raise InputError(f"the profile {injection.profile.name} does not strike it: {why}")
        return moved
    old, new = (format_of(each.tensor.dtype) for each in (injection, moved))
    values = tuple(new.values(new.bits(injection.values)).astype(float).tolist())
    return dataclasses.replace(moved, values=values, bits=tuple(_moved(each, old, new) for each in injection.bits))


def translations(injection: Injection, precisions: Sequence[str]) -> dict[str, Injection | str]:
    """The injection in several formats by their names; where it cannot be said in one, the reason.

    Raises:
      InputError: the workload has no option `precision`.
    """
    if "precision" not in injection.workload.OPTIONS:
        raise InputError(f"{injection.workload.name} has no option 'precision'; expected a workload that has one")
    found: dict[str, Injection | str] = {}
    for precision in precisions:
        try:
            found[precision] = translate(injection, precision)
        except InputError as error:
            found[precision] = str(error)
    return found


def _moved(each: ElementBits, old: Format, new: Format) -> ElementBits:
    if each.source is not None or old == new:
        return each
    if not each.keep:
        return ElementBits(int(new.bits(old.values([each.flip]).astype(float))[0]))
    if each.keep == ALL_ONES:
        return ElementBits.inverted(_roles_moved(each.flip, old, new))
    return ElementBits.stuck(int(each.flip != 0), _roles_moved(ALL_ONES ^ each.keep, old, new))


def _roles_moved(mask: int, old: Format, new: Format) -> int:
    """The bits of the new format that have the roles of these."""
    found = 0
    for bit in range(old.width):
        if mask >> bit & 1:
            role = old.role(bit)
            if (moved := new.bit(role)) is None:
                raise InputError(f"a {new.name} has no bit '{role}', which is bit {bit} of a {old.name}")
            found |= 1 << moved
    return found
