"""The queries behind a campaign's report, by name: every table and every figure links to one."""

WORST = 6  # experiments shown with their curves

# Of an experiment whose run settled, 1 where it was not followed any further, and 0 where it was; else null.
SETTLED = "(SELECT ended FROM comparisons WHERE experiment = number AND settled_after IS NOT NULL)"

# Of an experiment whose audit struck with others in one run (`together`), what that run came to; else null.
IN_GROUP = "(SELECT audit_groups.outcome FROM grouped JOIN audit_groups USING (name) WHERE experiment = number)"

# Of an experiment whose run, or audit, ended with such a guess, 1 where nobody followed it any further, 0 where
# somebody did; else null.  Null is also an audit that was not drawn to be followed alone and has been all the same,
# because an earlier group of it did not end masked: its end is known, and stands for nobody else.
NESTED = (
    f"CASE {IN_GROUP} WHEN 'Masked' THEN (SELECT CASE WHEN alone THEN 0 "
    "WHEN nullif(audit_outcome, 'Undecided') IS NULL THEN 1 END FROM grouped WHERE experiment = number) "
    f"ELSE {SETTLED} END"
)

# What an audit came to.  Who was in a group that did not end masked has no end yet before it was followed by itself.
ENDED = f"coalesce(audit_outcome, CASE WHEN {IN_GROUP} <> 'Masked' THEN 'Undecided' END)"

# What is best known of an experiment: what an audit found at the end, if it found anything, or else the verdict.
VERDICT = f"coalesce(nullif(audit_outcome, 'Undecided'), CASE {NESTED} WHEN 1 THEN 'Masked' END, outcome)"

# Whether that is a guess: nobody has followed the run to its end, and nothing proves it.
GUESSED = "(exit IN ('conditions', 'settled') AND nullif(audit_outcome, 'Undecided') IS NULL)"

# What a rate is computed from: what ended experiments, their verdicts, and what became of early ones.
KNOWN = f"exit, outcome, near, early_rule, {ENDED} AS ended, {NESTED} AS nested, count(*) AS n FROM experiments"
BY = f"exit, outcome, near, early_rule, {ENDED}, {NESTED}"

# What a run came to at the end, whatever an early verdict says; null where nobody looked.
AT_THE_END = "CASE WHEN exit IN ('conditions', 'settled') THEN audit_outcome ELSE outcome END"

# Experiments whose fault struck nothing: no element fitted its profile, or the step left the operation out.
UNSTRUCK = "SELECT count(*) AS n FROM experiments WHERE coalesce(audit_rule, rule) LIKE '%nothing was struck%'"

CLICKED = 300  # experiments whose curves a page keeps for a click

# These, the worst first; no numbers of the page come from it.
CARDS = (
    "SELECT number, epoch, step, site, operand, model, elements, steps + audit_steps AS recorded, curve, "
    f"{VERDICT} AS outcome FROM experiments WHERE {VERDICT} <> 'Masked' "
    f"ORDER BY worse_train DESC NULLS LAST, first_nonfinite DESC, number LIMIT {CLICKED}"
)

QUERIES = {
    "outcomes": f"SELECT {KNOWN} GROUP BY {BY}",
    "models": f"SELECT model, {KNOWN} GROUP BY model, {BY}",
    "stages": f"SELECT stage, {KNOWN} GROUP BY stage, {BY}",
    "operands": f"SELECT operand, {KNOWN} GROUP BY operand, {BY}",
    "epochs": f"SELECT epoch, {KNOWN} GROUP BY epoch, {BY}",
    "sites": f"SELECT site, {KNOWN} GROUP BY site, {BY}",
    "bits": f"SELECT site, operand, bit, {KNOWN} WHERE bit IS NOT NULL GROUP BY site, operand, bit, {BY}",
    "protection": f"SELECT number % 2 AS half, site, operand, bit, epoch, {KNOWN} "
    f"GROUP BY half, site, operand, bit, epoch, {BY}",
    "cells": "SELECT model AS 'fault model', stage, site, coalesce(CAST(bit AS TEXT), '') AS bit, exit AS 'ended by', "
    "CASE near WHEN 1 THEN 'yes' ELSE 'no' END AS 'near a threshold', outcome, "
    f"CASE {SETTLED} WHEN 1 THEN 'settled' WHEN 0 THEN audit_outcome || ' (settled before)' "
    f"ELSE coalesce(audit_outcome, CASE {IN_GROUP} WHEN 'Masked' THEN 'Masked, in a group' END, '') END "
    "AS 'at the end, by its audit', count(*) AS experiments FROM experiments "
    f"GROUP BY model, stage, site, experiments.bit, {BY}",
    "latency": "SELECT first_nonfinite AS steps, count(*) AS n FROM experiments "
    f"WHERE first_nonfinite IS NOT NULL AND {VERDICT} <> 'Masked' GROUP BY first_nonfinite ORDER BY first_nonfinite",
    "nonfinite": "SELECT coalesce(CAST(first_nonfinite - nonfinite_leaf_after AS TEXT), 'no array was') "
    "AS 'steps ahead', count(*) AS experiments FROM experiments "
    f"WHERE first_nonfinite IS NOT NULL AND {VERDICT} <> 'Masked' "
    "GROUP BY first_nonfinite - nonfinite_leaf_after ORDER BY first_nonfinite - nonfinite_leaf_after",
    "conditions": "SELECT number, epoch, step, site, operand, model, elements, "
    f"{VERDICT} AS outcome, history_excess, variance_excess FROM experiments",
    "worst": "SELECT number, epoch, step, worker, site, operand, model, elements, "
    f"{VERDICT} AS outcome, coalesce(audit_rule, rule) AS rule, worse_train, worse_test, "
    "steps + audit_steps AS recorded, curve FROM experiments "
    f"WHERE {VERDICT} <> 'Masked' AND ({VERDICT} <> 'Undecided' OR worse_train > 0) "
    f"ORDER BY worse_train DESC NULLS LAST, first_nonfinite DESC, number LIMIT {WORST}",
    "exits": "SELECT exit AS 'ended by', count(*) AS experiments, sum(steps) AS steps, avg(steps) AS 'steps each', "
    "sum(seconds) AS 'job seconds' FROM experiments GROUP BY exit",
    "published": "SELECT sum(CASE WHEN first_nonfinite IS NULL THEN (:epochs - epoch) * :steps_per_epoch "
    "ELSE step + first_nonfinite + 1 END) AS steps, "
    "sum(CASE exit WHEN 'end' THEN (:epochs - epoch) * :steps_per_epoch - step ELSE steps END) AS ours, "
    "sum(CASE WHEN audit_outcome IS NULL THEN 0 WHEN coalesce(first_nonfinite, exactly_masked_after) IS NOT NULL "
    f"OR {SETTLED} = 1 THEN audit_steps ELSE (:epochs - epoch) * :steps_per_epoch - step - steps END) AS audits, "
    "(SELECT coalesce(sum(CASE outcome WHEN 'Masked' THEN (:epochs - epoch) * :steps_per_epoch - step ELSE steps END), "
    "0) FROM audit_groups) AS together FROM experiments",
    "steps": "SELECT coalesce(sum(steps), 0) AS verdicts, coalesce(sum(audit_steps), 0) AS audits, "
    "(SELECT coalesce(sum(steps), 0) FROM walks) AS walks, "
    "(SELECT coalesce(sum(golden_steps), 0) FROM comparisons) AS beside, "
    "(SELECT coalesce(sum(steps), 0) FROM audit_groups) + "
    "(SELECT coalesce(sum(steps), 0) FROM experiments JOIN grouped ON experiment = number "
    "WHERE alone = 0 AND audit_outcome IS NOT NULL) AS together FROM experiments",
    "audit": f"SELECT early_rule, near, early_outcome, {AT_THE_END} AS verdict, count(*) AS n FROM experiments "
    "WHERE early_rule IS NOT NULL GROUP BY 1, 2, 3, 4",
    "settled": f"SELECT CASE exit WHEN 'settled' THEN '' ELSE outcome END AS early, "
    f"nullif(audit_outcome, 'Undecided') AS verdict, {SETTLED} AS ended, count(*) AS n, avg(settled_after) AS after "
    "FROM experiments JOIN comparisons ON experiment = number WHERE settled_after IS NOT NULL GROUP BY 1, 2, 3",
    "unlike": "SELECT CAST(number AS TEXT) AS 'experiment that settled', site, model AS 'fault model', "
    "settled_after AS 'steps until it settled', audit_outcome AS 'at the end', audit_rule AS rule "
    "FROM experiments JOIN comparisons ON experiment = number WHERE settled_after IS NOT NULL AND ended = 0 "
    "AND audit_outcome NOT IN ('Masked', 'Undecided') ORDER BY number",
    "groups": "SELECT epoch, step, json_array_length(members) AS experiments, outcome AS 'its run came to', steps, "
    "rule FROM audit_groups WHERE name IN (SELECT name FROM grouped) ORDER BY epoch, step, name",
    "grouped": "SELECT audit_groups.outcome AS 'in the group', alone, nullif(audit_outcome, 'Undecided') AS verdict, "
    "count(*) AS n FROM grouped JOIN audit_groups USING (name) JOIN experiments ON number = experiment "
    "GROUP BY 1, 2, 3",
    "hidden": "SELECT CAST(number AS TEXT) AS experiment, site, model AS 'fault model', audit_outcome AS "
    "'at the end, by itself', audit_rule AS rule FROM experiments JOIN grouped ON experiment = number "
    f"WHERE {IN_GROUP} = 'Masked' AND audit_outcome NOT IN ('Masked', 'Undecided') ORDER BY number",
    "support": "SELECT early_rule AS rule, count(*) AS audits, sum(audit_outcome <> outcome) AS changed "
    "FROM experiments WHERE audit_outcome <> 'Undecided' GROUP BY early_rule",
    "disagreeing": "SELECT CAST(number AS TEXT) AS experiment, site, model AS 'fault model', "
    "early_rule AS 'rule of the early verdict', early_outcome AS 'early verdict', "
    f"{AT_THE_END} AS 'at the end', coalesce(audit_rule, rule) AS rule FROM experiments "
    f"WHERE early_rule IS NOT NULL AND {AT_THE_END} NOT IN (early_outcome, 'Undecided') ORDER BY number",
    "latent": "SELECT outcome, count(*) AS experiments, "
    "sum(early_outcome IS NOT NULL AND early_outcome = 'Masked') AS 'missed by early verdicts' FROM experiments "
    "WHERE exit = 'end' AND outcome NOT IN ('Masked', 'Undecided') GROUP BY outcome",
    "time": "SELECT coalesce(sum(seconds), 0) AS seconds, coalesce(sum(outside_seconds), 0) AS outside, "
    "coalesce(sum(setup_seconds), 0) AS setup FROM experiments",
    "environments": "SELECT description, count(*) AS n FROM environments JOIN experiments "
    "ON environments.id = experiments.environment GROUP BY environments.id",
    "events": "SELECT at, what AS event FROM events ORDER BY at",
}
