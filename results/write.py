"""Write `results/README.md` from the results beside it: `python results/write.py`; `--check` writes nothing.

The prose is in `template/`, in Jinja2's language.  A number is `{{ an expression }}` over what `campaigns.py`,
`sources.py` and `training_flips.py` read and `wording.py` says.  A sentence that says that rates differ, or that no
difference is shown, stands within `{% call differ(TEST) %}` or `{% call alike(TEST) %}`; what else the numbers have to
bear out stands within `{% call claim(CONDITION) %}`.  Where they do not, nothing is written, and the sentence is named.

Rates are those of the program's own reports: two-phase estimates where verdicts are early ones (docs/campaign.md).
Tests take verdicts as they are best known.
"""

import argparse
import builtins
import sys
from types import ModuleType

import campaigns
import jinja2
import numpy as np
import sources
import training_flips
import wording

from fault_injection.campaign import wording as numbers
from fault_injection.campaign.rates import at_most, wilson
from fault_injection.machine.errors import InputError
from fault_injection.machine.files import write_text
from fault_injection.questions.scoreboard.comparison import cheapest_pairs
from fault_injection.runs.outcome import DIVERGED, LATENT

PAGE, TEMPLATE = sources.RESULTS / "README.md", "README.md.jinja"
BUILT_IN = ("abs", "len", "max", "min", "range", "round", "sum")


def _own(module: ModuleType) -> dict[str, object]:
    """What a module defines, by name."""
    return {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}


def environment() -> jinja2.Environment:
    """What templates know: functions of the modules beside this one, some of them as filters too."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(sources.RESULTS / "template"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    made.globals |= _own(numbers) | _own(campaigns) | _own(sources) | _own(training_flips) | _own(wording)
    made.globals |= {name: getattr(builtins, name) for name in BUILT_IN}
    made.globals |= {"at_most": at_most, "wilson": wilson, "LATENT": LATENT, "DIVERGED": DIVERGED, "np": np}
    made.globals |= {"cheapest_pairs": cheapest_pairs}
    made.filters |= {"campaign": campaigns.campaign, "counted": wording.counted, "load": sources.load}
    made.filters |= {"prefixed": lambda name, prefix: prefix + name, "whole": "{:,.0f}".format}
    made.tests["looked_at"] = lambda name: bool(sources.places(f"scaled/{name}"))
    made.tests["followed_at_full_width"] = lambda name: bool(sources.places(f"full_width/{name}"))
    return made


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    options = parser.parse_args(arguments)
    try:
        with campaigns.opened:
            page = wording.filled(environment().get_template(TEMPLATE).render())
    except wording.Unsupported as sentence:
        print(f"the results do not bear out: {sentence}", file=sys.stderr)
        return 1
    except (jinja2.TemplateError, InputError, OSError) as error:
        where = f"{error.name}:{error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        print(f"{where}{error}", file=sys.stderr)
        return 2
    if PAGE.read_text(encoding="utf-8") == page:
        return 0
    if options.check:
        print("results/README.md is not what the results say: run python results/write.py", file=sys.stderr)
        return 1
    write_text(PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
