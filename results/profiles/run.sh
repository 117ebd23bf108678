#!/bin/sh
# The campaigns of this folder: one of each shipped profile, and those of permanent faults in three formats.
# Each store keeps its plan.  About twenty minutes on two cores.
set -e
cd "$(dirname "$0")"
campaign() {
    cat > plan.toml <<PLAN
workload = "digits.py:$2"
[faults]
experiments = $3
profile = "$1"
epochs = [0, 1, 2, 3]
[run]
exit = "exact"
PLAN
    python -m fault_injection campaign plan.toml --out "made_$1_$2"
    mv "made_$1_$2/campaign.sqlite" "$1_$2.sqlite"
    rm -r "made_$1_$2" plan.toml
}
for profile in anatomy aws_node growing_lane infinity matrix_lane near_infinity not_a_number sdc_all sdc_band sdc_bias; do
    campaign $profile float32 60
done
for format in float32 bfloat16 float16; do
    campaign llm_prism $format 120
done
python -m fault_injection campaign ../../injections/plans/attention.toml --out made_attention
mv made_attention/campaign.sqlite attention.sqlite
rm -r made_attention
