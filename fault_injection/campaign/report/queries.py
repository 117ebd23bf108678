"""The queries behind a campaign's report, by name: every number of it links to one."""

WORST = 6  # experiments shown with their curves

QUERIES = {
    "outcomes": "SELECT outcome, count(*) AS n FROM experiments GROUP BY outcome",
    "models": "SELECT model, outcome, count(*) AS n FROM experiments GROUP BY model, outcome",
    "stages": "SELECT stage, outcome, count(*) AS n FROM experiments GROUP BY stage, outcome",
    "operands": "SELECT operand, outcome, count(*) AS n FROM experiments GROUP BY operand, outcome",
    "epochs": "SELECT epoch, outcome, count(*) AS n FROM experiments GROUP BY epoch, outcome",
    "sites": "SELECT site, outcome, count(*) AS n FROM experiments GROUP BY site, outcome",
    "bits": "SELECT bit, outcome, count(*) AS n FROM experiments WHERE bit IS NOT NULL GROUP BY bit, outcome",
    "cells": "SELECT model, stage, site, bit, outcome, count(*) AS n FROM experiments GROUP BY 1, 2, 3, 4, 5",
    "latency": "SELECT first_nonfinite AS steps, count(*) AS n FROM experiments WHERE first_nonfinite IS NOT NULL "
    "GROUP BY first_nonfinite ORDER BY first_nonfinite",
    "nonfinite": "SELECT curve FROM experiments WHERE first_nonfinite IS NOT NULL",
    "conditions": "SELECT coalesce(audit_outcome, outcome) AS outcome, history_excess, variance_excess "
    "FROM experiments",
    "worst": "SELECT number, epoch, step, worker, site, operand, model, elements, outcome, rule, worse_train, curve "
    f"FROM experiments WHERE worse_train IS NOT NULL ORDER BY worse_train DESC LIMIT {WORST}",
    "exits": "SELECT exit, count(*) AS n, sum(steps) AS steps FROM experiments GROUP BY exit",
    "published": "SELECT sum(CASE WHEN first_nonfinite IS NULL THEN (:epochs - epoch) * :steps_per_epoch "
    "ELSE step + first_nonfinite + 1 END) AS steps, "
    "sum(CASE exit WHEN 'end' THEN (:epochs - epoch) * :steps_per_epoch - step ELSE steps END) AS ours "
    "FROM experiments",
    "walks": "SELECT count(*) AS n, coalesce(sum(steps), 0) AS steps FROM walks",
    "audited": "SELECT coalesce(sum(audit_steps), 0) AS steps FROM experiments",
    "audit": "SELECT outcome, audit_outcome, count(*) AS n FROM experiments WHERE audit_outcome IS NOT NULL "
    "GROUP BY outcome, audit_outcome",
    "disagreeing": "SELECT number, site, model, audit_outcome, audit_rule FROM experiments "
    "WHERE audit_outcome IS NOT NULL AND audit_outcome <> outcome ORDER BY number",
    "time": "SELECT sum(seconds) AS seconds, sum(outside_seconds) AS outside, "
    "sum(setup_seconds) AS setup FROM experiments",
    "environments": "SELECT description, count(*) AS n FROM environments JOIN experiments "
    "ON environments.id = experiments.environment GROUP BY environments.id",
    "events": "SELECT at, what FROM events ORDER BY at",
}
