#!/bin/sh
# The campaigns of this folder: one of each shipped profile, those of permanent faults in four formats, and those that
# repeat what others have published of attention and of stages.  Each store keeps its plan.  About two hours on two cores.
set -e
cd "$(dirname "$0")"
campaign() {
    cat > plan.toml <<PLAN
workload = "digits.py:float32"
[faults]
experiments = $2
profile = "$1"
epochs = [0, 1, 2, 3]
[run]
exit = "exact"
PLAN
    python -m fault_injection campaign plan.toml --out made
    mv made/campaign.sqlite "$1_float32.sqlite"
    rm -r made plan.toml
}
for profile in anatomy aws_node growing_lane infinity matrix_lane near_infinity not_a_number sdc_all sdc_band sdc_bias; do
    campaign $profile 60
done
campaign llm_prism 120
for format in float32 bfloat16 float16 float8; do
    cat > plan.toml <<PLAN
workload = "transformer"
[options]
precision = "$format"
width = 32
context = 32
batch_size = 16
workers = 2
epochs = 8
[faults]
experiments = 200
profile = "llm_prism"
epochs = [0, 1, 2, 3]
seed = 10390
[run]
exit = "full"
twins = 3
PLAN
    python -m fault_injection campaign plan.toml --out made
    mv made/campaign.sqlite "formats-$format.sqlite"
    rm -r made plan.toml
done
for plan in attention stages/products stages/gradient stages/update; do
    python -m fault_injection campaign "../../injections/plans/$plan.toml" --out made
    mv made/campaign.sqlite "$(basename "$plan").sqlite"
    rm -r made
done
