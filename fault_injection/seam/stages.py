"""Where in a step a fault strikes, beside the operations of its passes."""

STATE = "state"  # a leaf of the state, before the step reads it
CHECKPOINT = "checkpoint"  # a leaf of the checkpoint that a run restarts from
BESIDE = (STATE, CHECKPOINT)

# Between the passes and the new state; names of what is struck begin so: `gradient/fc/kernel`.
WORKER_GRADIENT, GRADIENT, UPDATE = EXCHANGED = ("worker_gradient", "gradient", "update")
