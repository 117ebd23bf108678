"""The environment variables of accuracy-sensitive anomaly detection, read as the vendors read them.

A wrong value falls back to its default, and a note says so.  Who names a detector wants it: a
variable that is not set does not switch it off, as it does at the vendors; one that says off does.

Reference: Ascend Extension for PyTorch, environment variables; MindSpore, `MS_NPU_ASD_CONFIG` (docs/detection.md).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

CONFIGS = ("NPU_ASD_CONFIG", "MS_NPU_ASD_CONFIG")  # of torch_npu and of MindSpore: the same keys
LEAST = 3  # of every threshold
WITHOUT_EFFECT = {  # keys that are read and checked, and what to do instead
    "with_checksum": "products are checked by the detector `checksum`",
    "checksum_cooldown": "products are checked by the detector `checksum`",
}
SHOWN = 40  # characters of a wrong value that a note repeats


@dataclasses.dataclass(frozen=True)
class AsdConfig:
    """What `NPU_ASD_CONFIG` or `MS_NPU_ASD_CONFIG` says.

    Attributes:
      enable: whether the detector runs.
      with_checksum: whether a raised alarm switches on the checksum of products for `cooldown` minutes.
      cooldown, strikes_window, checksum_cooldown: in minutes.
      strikes_num: see `Strikes`.
      upper_thresh1, upper_thresh2: `Asd.upper` and `Asd.accepted`.
      grad_sample_interval: of so many gradients one is watched; MindSpore's default is 10.
    """

    enable: bool = True
    with_checksum: bool = False
    cooldown: int = 5
    strikes_num: int = 3
    strikes_window: int = 480
    checksum_cooldown: int = 180
    upper_thresh1: int = 1_000_000
    upper_thresh2: int = 100
    grad_sample_interval: int = 3


def read_config(environment: Mapping[str, str]) -> tuple[AsdConfig, list[str]]:
    """The settings of `asd`, and a note for every value that was not used.

    MindSpore also takes `KEY=VALUE`, and ignores keys that it does not know.  torch_npu wants `KEY:VALUE`, and a key of
    its own.

    >>> read_config({"NPU_ASD_CONFIG": "enable:true,cooldown:10,upper_thresh1:2"})[0].cooldown
    10
    >>> print(read_config({"NPU_ASD_CONFIG": "enable:true,cooldown:10,upper_thresh1:2"})[1][0])
    NPU_ASD_CONFIG: upper_thresh1:2; expected a whole number from 3; the default 1000000 holds
    """
    given = [name for name in CONFIGS if environment.get(name)]
    if not given:
        return AsdConfig(), []
    name = given[-1]
    notes = [f"{CONFIGS[0]} is not used: {CONFIGS[1]} is set too"] if len(given) > 1 else []
    lenient = name == CONFIGS[1]
    config = AsdConfig(grad_sample_interval=10) if lenient else AsdConfig()
    defaults: dict[str, int] = dataclasses.asdict(config)
    values: dict[str, Any] = {}
    for part in environment[name].split(","):
        between = "=" if lenient and "=" in part else ":"
        key, colon, text = (piece.strip() for piece in part.partition(between))
        if lenient and colon and key not in defaults:
            continue
        if not colon or key not in defaults:
            notes.append(
                f"{name}: {part.strip()[:SHOWN]!r} is not used; expected KEY:VALUE with one of {', '.join(defaults)}"
            )
            continue
        default = defaults[key]
        least = LEAST if key.startswith("upper") else 1
        known: int | None
        if isinstance(default, bool):
            known, expected = {"true": True, "false": False}.get(text), "true or false"
        else:
            known, expected = _whole(text, least), f"a whole number from {least}"
        if known is not None:
            values[key] = known
        else:
            holds = str(default).lower()
            notes.append(f"{name}: {key}:{text[:SHOWN]}; expected {expected}; the default {holds} holds")
    for key, instead in WITHOUT_EFFECT.items():
        if values.get(key, defaults[key]) != defaults[key]:
            notes.append(f"{name}: {key} has no effect here: {instead}")
    return dataclasses.replace(config, **values), notes


def _whole(text: str, least: int) -> int | None:
    """The whole number that a text is; None where it is none, or smaller than `least`."""
    fits = text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= least
    return int(text) if fits else None


@dataclasses.dataclass(frozen=True)
class AsdThresholds:
    """What the variables of `asd_v1` and `asd_v3` say.

    Attributes:
      enable: 0 off; 1 alarms are written and none is raised; 2 an alarm that stops is raised; 3 the same, and
        every value is written.
      upper, sigma: the first stops, the second warns.
    """

    enable: int = 2
    upper: tuple[int, int] = (1_000_000, 10_000)
    sigma: tuple[int, int] = (100_000, 5_000)


def read_thresholds(environment: Mapping[str, str]) -> tuple[AsdThresholds, list[str]]:
    """The settings of `asd_v1` and `asd_v3`, and a note for every value that was not used.

    >>> read_thresholds({"NPU_ASD_UPPER_THRESH": "1000,10"})[0].upper
    (1000, 10)
    """
    defaults, notes = AsdThresholds(), []
    enable, text = defaults.enable, environment.get("NPU_ASD_ENABLE", "")
    if text in ("0", "1", "2", "3"):
        enable = int(text)
    elif text:
        notes.append(f"NPU_ASD_ENABLE={text[:SHOWN]!r}; expected 0, 1, 2 or 3; the default {enable} holds")

    def pair(name: str, default: tuple[int, int]) -> tuple[int, int]:
        text = environment.get(name, "")
        parts = [_whole(part.strip(), LEAST) for part in text.split(",")]
        if len(parts) == 2 and parts[0] and parts[1] and parts[0] > parts[1]:
            return parts[0], parts[1]
        if text:
            expected = f"two whole numbers from {LEAST}, the first larger than the second"
            notes.append(f"{name}={text[:SHOWN]!r}; expected {expected}; the default {default[0]},{default[1]} holds")
        return default

    upper, sigma = pair("NPU_ASD_UPPER_THRESH", defaults.upper), pair("NPU_ASD_SIGMA_THRESH", defaults.sigma)
    return AsdThresholds(enable, upper, sigma), notes
