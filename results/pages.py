"""Write every page that is shipped here again, from what is beside it: `python results/pages.py [NAME …]`.

A NAME is a folder within results, such as `latent`, or `checkpoints/kinds`; without one all are written.
"""

import os
import pathlib
import sys
import time

from fault_injection.questions.outcomes.report.comparison import write_comparison
from fault_injection.questions.outcomes.report.sections import write_report
from fault_injection.questions.scoreboard.page import write_scoreboard_page
from fault_injection.questions.spread.campaign_page import rewrite_campaign_map_page
from fault_injection.questions.vulnerability.page import rewrite_vulnerability_page

RESULTS = pathlib.Path(__file__).resolve().parent
WRITERS = {
    "report.html": write_report,
    "score.html": write_scoreboard_page,
    "pvf.html": rewrite_vulnerability_page,
    "map.html": rewrite_campaign_map_page,
}
# The folder of a comparison, and those of its campaigns.
COMPARED = {
    "checkpoints": [f"checkpoints/{name}" for name in ("horovod", "ddp", "horovod_broadcast", "zero", "pipeline")],
    "checkpoints/kinds": [
        f"checkpoints/horovod_{name}" for name in ("critical", "not_critical", "bfloat16", "float16")
    ],
    "permanent": [f"permanent/{name}" for name in ("permanent", "transient")],
    "transformer/comparison": [f"transformer/{name}" for name in ("float32", "bfloat16")],
    "training_pvf/bfloat16": [
        *(f"training_pvf/bfloat16/resnet18_{name}_bfloat16" for name in ("params", "m", "v", "stats")),
        "training_pvf/bfloat16/transformer_params_bfloat16",
    ],
    "training_pvf/resnet18": [f"training_pvf/resnet18/resnet18_{name}" for name in ("params", "m", "v", "stats")],
    "training_pvf/resnet18_components": [
        f"training_pvf/resnet18_components/resnet18_{name}"
        for name in ("stem", "block_1", "block_2", "block_3", "block_4", "fc")
    ],
    "training_pvf/resnet18_moments": [
        f"training_pvf/resnet18_moments/resnet18_{moment}_{part}"
        for moment in "mv"
        for part in ("stem", "blocks", "fc")
    ],
    "training_pvf/transformer": [f"training_pvf/transformer/transformer_{name}" for name in ("params", "mu", "nu")],
    "training_pvf/transformer_components": [
        f"training_pvf/transformer_components/transformer_{name}" for name in ("embedding", "attention", "mlp", "norms")
    ],
}


def main(names: list[str]) -> int:
    os.chdir(RESULTS.parent)  # commands on the pages name folders from there
    results = pathlib.Path("results")
    wanted = {results / name for name in names}
    if unknown := sorted(str(path) for path in wanted if not path.is_dir()):
        print(f"no such folder: {', '.join(unknown)}", file=sys.stderr)
        return 2
    for page in sorted(results.rglob("*.html")):
        if wanted and page.parent not in wanted:
            continue
        begun, name = time.monotonic(), page.parent.relative_to(results).as_posix()
        if page.name == "comparison.html":
            write_comparison([results / folder for folder in COMPARED[name]], page.parent)
        else:
            WRITERS[page.name](page.parent)
        print(f"{page}: {page.stat().st_size / 1e6:.2f} MB in {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
