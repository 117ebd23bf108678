"""Files of `torch.save`: the pickle is data, storages are shared, and only what is altered differs."""

import collections
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from checkpoints import some_arrays
from command_line import said
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_files import Call, Global, Persistent, View, archive_of, pickled, torch_file, write_torch

from fault_injection.checkpoints.alteration import Selection, draw_alteration
from fault_injection.checkpoints.formats import open_checkpoint
from fault_injection.checkpoints.in_place import Region
from fault_injection.checkpoints.overlaps import repeated, sharing
from fault_injection.machine.errors import InputError

NUMBERS = np.arange(12, dtype=np.float32)
TIED = {"embed": View(0, 0, (3, 4), (4, 1)), "head": View(0, 0, (3, 4), (4, 1)), "own": View(1, 0, (2,), (1,))}


@pytest.fixture
def tied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tied.pt").write_bytes(torch_file(TIED, [NUMBERS, np.ones(2, np.float32)]))
    return tmp_path


def test_a_weight_that_two_layers_share_counts_once_and_both_are_said_to_change(tied, capsys):
    code, out, _ = said(capsys, "alter", "tied.pt", "--out", "b.pt", "--share", "1", "--log", "log.json", "--json")
    found = json.loads(out)
    assert (code, found["altered"], found["elements"], found["arrays"]) == (0, 14, 14, 2)
    assert found["shared"] == {"embed": ["head"]}
    new = open_checkpoint(tied / "b.pt")
    assert np.array_equal(new.array("embed").view("u4"), new.array("head").view("u4"))
    assert (new.array("embed").view("u4") != NUMBERS.view("u4").reshape(3, 4)).all()
    out = said(capsys, "alter", "tied.pt", "--check", "--names", "head", "--share", "1")[1]
    assert "12 elements of 12 in 1 arrays" in out and "changes in embed, too" in out
    assert said(capsys, "alter", "b.pt", "--in-place", "--replay", "log.json")[0] == 0
    assert (tied / "b.pt").read_bytes() == (tied / "tied.pt").read_bytes()


def test_a_log_of_two_copies_is_not_applied_where_they_are_one(tied, capsys):
    np.savez(tied / "apart.npz", embed=NUMBERS.reshape(3, 4), head=NUMBERS.reshape(3, 4))
    assert said(capsys, "alter", "apart.npz", "--out", "c.npz", "--share", "1", "--log", "log.json")[0] == 0
    code, _, err = said(capsys, "alter", "tied.pt", "--out", "d.pt", "--replay", "log.json")
    assert (code, err.count("\n")) == (2, 1) and "an element twice that is shared here: embed and head" in err


@st.composite
def views(draw):
    """Views of one storage of 40 elements, of any strides, zero among them."""
    found = {}
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
        strides = tuple(draw(st.integers(0, 5)) for _ in shape)
        span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        found[f"v{number}"] = Region(4 * draw(st.integers(0, 40 - min(span, 40))), shape, np.dtype("<f4"), strides)
    return found


def addresses(region):
    """Of each element, by NumPy's own strides."""
    strides = [4 * stride for stride in region.strides]
    numbered = np.lib.stride_tricks.as_strided(np.arange(400), region.shape, [2 * stride for stride in strides])
    return numbered.reshape(-1) + region.offset // 4


@settings(max_examples=200)
@given(views())
def test_of_views_of_one_storage_each_element_is_left_once(regions):
    again, seen = repeated(regions), []
    for name, region in regions.items():
        places = again.get(name, np.empty(0, int))
        if places is not None:
            seen += np.delete(addresses(region), places).tolist()
    every = {place for region in regions.values() for place in addresses(region).tolist()}
    assert sorted(seen) == sorted(every)


@settings(max_examples=100)
@given(views(), st.data())
def test_the_arrays_that_change_with_one_are_those_that_have_its_element(regions, data):
    name = data.draw(st.sampled_from(sorted(regions)))
    place = data.draw(st.integers(0, regions[name].described.size - 1))
    word = np.zeros(1, np.uint32)
    at = addresses(regions[name])[place]
    expected = {other for other, region in regions.items() if other != name and at in addresses(region)}
    found = sharing(regions, {name: type("One", (), {"places": np.array([place]), "before": word, "after": word})})
    assert {one for one in found.get(name, ()) if not one.startswith("other elements")} == expected


def test_views_are_read_and_altered_through_their_strides(tmp_path):
    tree = {"t": View(0, 0, (4, 3), (1, 4)), "tail": View(0, 8, (4,), (1,)), "odd": View(0, 1, (2, 2), (6, 2))}
    (tmp_path / "a.pt").write_bytes(torch_file(tree, [NUMBERS]))
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    assert checkpoint.array("t").tolist() == NUMBERS.reshape(3, 4).T.tolist()
    assert checkpoint.array("odd").tolist() == [[1, 3], [7, 9]]
    checkpoint.write(tmp_path / "b.pt", draw_alteration(checkpoint, Selection(share=1.0, critical=True)))
    new = open_checkpoint(tmp_path / "b.pt")
    expected = NUMBERS.view("u4") ^ (1 << 30)
    assert np.array_equal(new.array("t").T.reshape(-1).view("u4"), expected)
    assert np.array_equal(new.array("tail").view("u4"), expected[8:])
    assert zipfile.ZipFile(tmp_path / "b.pt").testzip() is None


@pytest.mark.parametrize("count", [1, 500])
def test_the_checksum_is_right_and_no_other_byte_differs(tmp_path, count):
    """By what changed, and by reading anew what changed in many places."""
    (tmp_path / "a.pt").write_bytes(torch_file({"a": View(0, 0, (1000,), (1,))}, [np.ones(1000, np.float16)]))
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    checkpoint.write(tmp_path / "b.pt", draw_alteration(checkpoint, Selection(count=count)))
    old, new = ((tmp_path / name).read_bytes() for name in ("a.pt", "b.pt"))
    assert zipfile.ZipFile(tmp_path / "b.pt").testzip() is None
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        info = archive.getinfo("archive/data/0")
    begin = old.index(np.ones(1000, np.float16).tobytes())
    inside = range(begin, begin + info.file_size)
    differ = [k for k in range(len(old)) if old[k] != new[k]]
    assert len(old) == len(new) and len([k for k in differ if k in inside]) == count
    assert len([k for k in differ if k not in inside]) <= 8  # behind the member, and in the directory


def test_a_file_without_checksums_keeps_none(tmp_path):
    content = bytearray(torch_file({"a": View(0, 0, (12,), (1,))}, [NUMBERS]))
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        for info in archive.infolist():  # as `torch.serialization.set_crc32_options(False)` leaves them
            crc = info.CRC.to_bytes(4, "little")
            while (at := content.find(crc)) >= 0 and info.CRC:
                content[at : at + 4] = bytes(4)
    (tmp_path / "a.pt").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    checkpoint.write(tmp_path / "b.pt", draw_alteration(checkpoint, Selection(count=2)))
    new = (tmp_path / "b.pt").read_bytes()
    assert sum(one != other for one, other in zip(content, new, strict=True)) == 2


def test_what_is_no_tensor_is_named_and_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = {"w": View(0, 0, (3,), (1,)), "n": View(1, 0, (2,), (1,)), "lr": 0.1, "betas": [0.9, 0.99], "name": "x"}
    storages = [np.ones(3, np.float32), np.ones(2, np.complex64)]
    for name, value in {"a.pt": tree, "b.pt": {**tree, "lr": 0.2}}.items():
        (tmp_path / name).write_bytes(torch_file(value, storages))
    assert set(open_checkpoint(tmp_path / "a.pt").others) == {"n", "lr", "betas", "name"}
    out = said(capsys, "diff", "a.pt", "b.pt")[1]
    assert "lr" in out and "in 1 of 5 arrays" in out
    assert "complex64 [2]" in said(capsys, "alter", "a.pt", "--check")[1]


MARK = "exploded"
PERSISTENT = Persistent(("storage", Global("torch.FloatStorage"), "0", "cpu", 12))
HOSTILE = {
    "os.system": pickled({"a": Call(Global("posix.system"), (f"touch {MARK}",))}),
    "eval": pickled(Call(Global("builtins.eval"), (f"open({MARK!r}, 'w').close()",))),
    "a method of what was found": pickled(Call(Call(Global("builtins.getattr"), (PERSISTENT, "tofile")), (MARK,))),
    "an unknown class": pickled({"model": Call(Global("torch.nn.modules.linear.Linear"))}),
    "a nested pickle": pickled(Call(Global("torch.storage._load_from_bytes"), (pickle.dumps(1).decode("latin1"),))),
    "an instance": b"(S'touch exploded'\nios\nsystem\n.",
    "a registered extension": b"\x80\x02\x82\x01.",
    "by the stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0etouch exploded\x85R.",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_in_a_pickle_is_executed(tmp_path, monkeypatch, capsys, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_bytes(archive_of({"data.pkl": HOSTILE[what], "data/0": NUMBERS.tobytes()}))
    code, _, err = said(capsys, "alter", "a.pt", "--out", "b.pt")
    assert (code, err.count("\n")) == (2, 1) and "nothing was run" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt"]


def test_the_hostile_pickles_would_execute_if_they_were_unpickled(tmp_path, monkeypatch):
    """The test above could not fail otherwise."""
    monkeypatch.chdir(tmp_path)
    for what in ("os.system", "eval", "an instance", "by the stack"):
        pickle.loads(HOSTILE[what])
        assert (tmp_path / MARK).exists()
        (tmp_path / MARK).unlink()


def bomb():
    """Lists that hold each other: 2³⁰ elements by 30 lines of a pickle."""
    value = [{"a": 1}]
    for _ in range(30):
        value = [value, value]
    return pickle.dumps(value, 2)


LYING = {
    "beyond its storage": (View(0, 4, (3, 3), (3, 1)), "ends at byte 52 of storage 0, which has 48"),
    "of a negative stride": (View(0, 11, (3,), (-1,)), "no whole numbers"),
    "of 2**80 elements": (View(0, 0, (2**40, 2**40), (0, 0)), "has the shape"),
    "of other dimensions": (View(0, 0, (3,), ()), "other dimensions"),
}


@pytest.mark.parametrize("what", LYING)
def test_a_tensor_that_lies_is_refused(tmp_path, what):
    view, why = LYING[what]
    (tmp_path / "a.pt").write_bytes(torch_file({"a": view}, [NUMBERS]))
    with pytest.raises(InputError, match=why):
        open_checkpoint(tmp_path / "a.pt")


OTHER = {
    "TorchScript": ({"data.pkl": pickled({}), "constants.pkl": b"", "code/x.py": b""}, "archive of TorchScript"),
    "torch.export": ({"archive_format": b"pt2"}, "archive of torch.export"),
    "containers a million times": ({"data.pkl": bomb()}, "containers in each other have more than"),
    "a storage cut short": (
        {"data.pkl": pickled({"a": Call(Global("torch._utils._rebuild_tensor"), (PERSISTENT, 0, (12,), (1,)))}),
         "data/0": b"1234"},
        "storage 0 has 4 bytes, expected 48",
    ),
    "an unknown order of bytes": ({"data.pkl": pickled({}), "byteorder": b"middle"}, "expected little or big"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_other_archives_are_refused_by_name(tmp_path, what):
    members, why = OTHER[what]
    (tmp_path / "a.pt").write_bytes(archive_of(members))
    with pytest.raises(InputError, match=why):
        open_checkpoint(tmp_path / "a.pt")


def test_the_legacy_form_is_refused_by_name(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2))
    with pytest.raises(InputError, match="PyTorch's legacy form"):
        open_checkpoint(tmp_path / "a.pt")


def test_pytorch_itself_writes_what_is_read_and_reads_what_was_altered(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4, bias=False))
    model[2].weight = torch.nn.Parameter(model[0].weight.detach().t())  # a view
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    kinds = {str(kind): torch.ones(5).to(kind) for kind in (torch.bfloat16, torch.float16, torch.float8_e5m2)}
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "kinds": kinds, "step": 3}
    state |= {"parameter": torch.nn.Parameter(torch.ones(3)), "ints": torch.arange(4), "flags": torch.tensor([True])}
    state |= {"ordered": collections.OrderedDict(a=torch.ones(2)), "expanded": torch.ones(1).expand(4)}
    torch.save(state, tmp_path / "a.pt")
    checkpoint = open_checkpoint(tmp_path / "a.pt")
    altered = draw_alteration(checkpoint, Selection(count=20, finite=True))
    checkpoint.write(tmp_path / "b.pt", altered)
    found = {}

    def walk(node, path):
        if isinstance(node, torch.Tensor):
            found[path] = node.detach()
        elif isinstance(node, dict | list):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                walk(child, f"{path}/{key}" if path else str(key))

    walk(torch.load(tmp_path / "b.pt", weights_only=True), "")
    new = open_checkpoint(tmp_path / "b.pt")
    assert set(new.arrays) == set(found)
    for name, tensor in found.items():
        assert np.array_equal(new.array(name).astype(np.float64), tensor.to(torch.float64).numpy()), name
    assert zipfile.ZipFile(tmp_path / "b.pt").testzip() is None


def test_a_log_goes_from_pytorch_to_another_format_and_back(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_torch(tmp_path / "a.pt", some_arrays())
    np.savez(tmp_path / "a.npz", **some_arrays())
    for one, other in (("a.pt", "a.npz"), ("a.npz", "a.pt")):
        assert said(capsys, "alter", one, "--out", f"b{one}", "--count", 9, "--log", f"{one}.json")[0] == 0
        assert said(capsys, "alter", other, "--out", f"c{other}", "--replay", f"{one}.json")[0] == 0
        code, out, _ = said(capsys, "diff", f"b{one}", f"c{other}")
        assert (code, out.split("\n")[-2]) == (0, "0 elements differ, in 0 bits, in 0 of 6 arrays")
        for path in (f"b{one}", f"c{other}"):
            (tmp_path / path).unlink()
