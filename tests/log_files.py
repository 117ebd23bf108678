"""Logs of every family, written as trackers and trainers write them, of the same values."""

import json
import pathlib
import struct

import google_crc32c
import numpy as np

STEPS = 60
START = 1_700_000_000  # seconds since 1970
FAULTY = 40  # the step whose loss is a spike


def values(count=STEPS, seed=0):
    """Losses with a spike at `FAULTY`, and norms of gradients."""
    rng = np.random.default_rng(seed)
    losses, norms = 2.3 + 0.02 * rng.normal(size=count), 1 + 0.05 * rng.normal(size=count)
    losses[FAULTY] = 50.0
    return [round(float(x), 4) for x in losses], [round(float(x), 4) for x in norms]


def _rows(head, rows, separator=",", end="\n"):
    return end.join([head, *(separator.join(map(str, row)) for row in rows)]) + end


def masked(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _field(number, wire, payload):
    return bytes([number << 3 | wire]) + payload


def _sized(payload):
    assert len(payload) < 128
    return bytes([len(payload)]) + payload


def _varint(number):
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def event_file(rows):
    """TFRecords of events, by the encoding of protocol buffers; rows are step, tag, value."""
    events = [_field(1, 1, struct.pack("<d", START)) + _field(3, 2, _sized(b"brain.Event:2"))]
    for step, tag, value in rows:
        one = _field(1, 2, _sized(tag.encode())) + _field(2, 5, struct.pack("<f", value))
        events.append(
            _field(1, 1, struct.pack("<d", START + step))
            + _field(2, 0, _varint(step))
            + _field(5, 2, _sized(_field(1, 2, _sized(one))))
        )
    parts = []
    for event in events:
        length = struct.pack("<Q", len(event))
        parts += [length, masked(length), event, masked(event)]
    return b"".join(parts)


def written():
    """By family: name of the file and content, or the files of a folder; all of the same values."""
    losses, norms = values()
    both = list(zip(range(STEPS), losses, norms, strict=True))
    clock = [f"2023-11-14 22:{13 + i // 60:02d}:{i % 60:02d}" for i in range(STEPS)]
    german = [(i, str(a).replace(".", ","), str(b).replace(".", ",")) for i, a, b in both]
    long = [(i, name, x, START + i) for i, a, b in both for name, x in (("loss", a), ("grad_norm", b))]
    history = [{"epoch": i / 30, "grad_norm": b, "learning_rate": 5e-5, "loss": a, "step": i} for i, a, b in both]
    state = {"best_metric": None, "log_history": [*history, {"epoch": 2.0, "step": STEPS - 1, "train_runtime": 9.5}]}
    megatron = "\n".join(
        f" [{clock[i]}] iteration {i:8d}/     100 | consumed samples: {i * 8:12d} | elapsed time per iteration (ms): "
        f"211.5 | learning rate: 1.0E-04 | lm loss: {a:.6E} | loss scale: 1.0 | grad norm: {b:.3f} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n[Rank 0] memory (MB) | allocated: 10.2"
        for i, a, b in both
    )
    titan = "\n".join(
        f"[rank0]:[titan] {clock[i]},120 - root - INFO - \x1b[31mstep: {i:2d}  \x1b[32mloss: {a:7.4f}  "
        f"\x1b[35mgrad_norm: {b:.4f}  \x1b[33mmemory:  0.86GiB(0.91%)  tps: 1,234  mfu: 1.20%\x1b[39m"
        for i, a, b in both
    )
    wide = "epoch,step,train_loss,grad_norm,val_loss"
    return {
        "long": ("a.csv", _rows("step,tensor,value,time", long)),
        "wide": ("a.csv", _rows("step,loss,grad_norm", both)),
        "decimal commas": ("a.csv", "\ufeff" + _rows("step;loss;grad_norm", german, ";", "\r\n")),
        "W&B history": (
            "a.csv",
            _rows(
                ",_step,_runtime,_timestamp,train/loss,grad_norm,note",
                [(i, i, i / 2, START + i / 2, a, b, "x") for i, a, b in both],
            ),
        ),
        "W&B panel": (
            "a.csv",
            _rows('"Step","run-1 - loss","run-1 - loss__MIN","run-1 - loss__MAX"', [(i, a, a, a) for i, a, _ in both]),
        ),
        "TensorBoard CSV": ("run-tag-loss.csv", _rows("Wall time,Step,Value", [(START + i, i, a) for i, a, _ in both])),
        "Lightning": (
            "metrics.csv",
            _rows(wide, [row for i, a, b in both for row in ((i // 30, i, a, b, ""), (i // 30, i, "", "", 2.4))]),
        ),
        "Keras": ("a.csv", _rows("epoch,accuracy,loss,val_accuracy,val_loss", [(i, b, a, b, 2.4) for i, a, b in both])),
        "JSON lines": (
            "a.jsonl",
            "".join(f"{json.dumps({'step': i, 'train': {'loss': a}, 'g': b})}\n" for i, a, b in both),
        ),
        "trainer_state": ("trainer_state.json", json.dumps(state, indent=2)),
        "Megatron": ("a.log", "> building the model ...\n" + megatron + "\n"),
        "torchtitan": ("a.log", "[rank0]:[titan] INFO - Starting job\n" + titan + "\n"),
        "MLflow file": ("loss", "".join(f"{(START + i) * 1000} {a} {i}\n" for i, a, _ in both)),
        "MLflow folder": (
            "run",
            {
                "meta.yaml": "name: x\n",
                "metrics/train/loss": "".join(f"{(START + i) * 1000} {a} {i}\n" for i, a, _ in both),
                "metrics/grad_norm": "".join(f"{(START + i) * 1000} {b} {i}\n" for i, _, b in both),
            },
        ),
    }


def write(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Write the log of a family."""
    file, content = written()[name]
    path = folder / file
    if isinstance(content, dict):
        for member, text in content.items():
            (path / member).parent.mkdir(parents=True, exist_ok=True)
            (path / member).write_text(text)
    else:
        path.write_bytes(content.encode())
    return path
