"""A batch is a pure function of its address, and augmentation moves pixels without inventing any."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.data import DATASETS, Batches, Images
from fault_injection.data.batches import ORDER, PADDING, augment, permutation, steps_per_epoch
from fault_injection.data.images import SHAPE, normalisation
from fault_injection.workloads.image import AUGMENTATIONS

SHIFTS = 2 * PADDING + 1
AS_IS = np.arange(256, dtype=np.float32)  # a table that leaves pixel values as they are


@pytest.fixture(scope="module")
def digits():
    return DATASETS["digits"].load()


def places(count):
    """Images that say which they are: pixel (h, w) of image n is [n, h, w], each counted from 1 (n to 255)."""
    numbers = np.meshgrid(np.arange(count) % 255, np.arange(32), np.arange(32), indexing="ij")
    return 1 + np.stack(numbers, axis=-1).astype(np.uint8)


def numbered(train=200, test=50):
    """A dataset whose labels are the images' numbers."""
    labels = [np.arange(count, dtype=np.int32) for count in (train, test)]
    return Images(places(train), labels[0], places(test), labels[1], AS_IS)


def augmented(images, kind, seed):
    """What `augment` makes of the images with the random numbers of `seed`."""
    out = np.zeros(images.shape, np.float32)
    augment(images, AS_IS, kind, np.random.default_rng(seed), out)
    return out


def shift(images):
    """How far images of `places` were cropped from the top and from the left: read off a pixel never cut away."""
    return images[..., 16, 16, 1:] - 17 + PADDING


# ---- Digits -------------------------------------------------------------------------------


def test_digits_are_what_is_known_of_them_without_reading(digits):
    info = DATASETS["digits"]
    assert (info.train, info.test) == (1437, 360)
    assert digits.train_images.shape == (1437, 32, 32, 3) and digits.test_images.shape == (360, 32, 32, 3)
    assert digits.train_labels.shape == (1437,) and digits.test_labels.shape == (360,)
    assert digits.train_images.dtype == digits.test_images.dtype == np.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == np.int32
    assert set(digits.train_labels) == set(digits.test_labels) == set(range(info.classes))
    example = batches(digits).train(0, 0)["input"][0, 0]
    assert (example.shape, example.dtype) == (SHAPE, np.float32)


def test_digits_are_normalised_by_the_training_images(digits):
    train, test = digits.table[digits.train_images], digits.table[digits.test_images]
    pixels = train.astype(np.float64)
    assert abs(pixels.mean()) < 1e-6 and abs(pixels.std() - 1) < 1e-6
    # One scalar mean and deviation: there are as many grey levels as before, in both parts the same.
    levels = np.unique(train)
    assert len(levels) == 17 and np.allclose(np.diff(levels), levels[1] - levels[0])
    assert np.isin(test, levels).all()


@settings(max_examples=20)
@given(st.integers(1, 200), st.integers(0, 2**32))
def test_the_table_normalises_as_pixels_in_float64_would(count, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 2, 2, 3), np.uint8)
    plain = pixels.astype(np.float64)
    expected = ((plain - plain.mean()) / plain.std()).astype(np.float32)
    np.testing.assert_array_max_ulp(normalisation(pixels)[pixels], expected, 1)


def test_digits_are_enlarged_by_repeating_pixels(digits):
    for images in (digits.train_images, digits.test_images):
        blocks = images.reshape(-1, 8, 4, 8, 4, 3)
        assert (blocks == blocks[:, :, :1, :, :1, :1]).all()


def test_the_split_of_digits_is_fixed_and_leaves_out_no_image(digits):
    from sklearn.datasets import load_digits

    bundled = load_digits()
    test = np.arange(1797) % 5 == 0
    assert (digits.test_labels == bundled.target[test]).all()
    assert (digits.train_labels == bundled.target[~test]).all()
    grey = [images[:, ::4, ::4, 0] for images in (digits.train_images, digits.test_images)]
    assert (grey[0] == bundled.images[~test]).all() and (grey[1] == bundled.images[test]).all()
    # Disjoint by content too: no training image is among the test images.
    assert not {image.tobytes() for image in digits.train_images} & {image.tobytes() for image in digits.test_images}


def test_loading_again_gives_the_same_bits(digits):
    assert DATASETS["digits"].load().sha256 == digits.sha256


def test_the_hash_of_a_dataset_notices_one_pixel_one_label_and_the_normalisation():
    images = numbered()
    altered = [dataclasses.replace(images, train_images=images.train_images.copy())]
    altered[0].train_images[-1, -1, -1, -1] += 1
    altered.append(dataclasses.replace(images, test_labels=images.test_labels[::-1]))
    altered.append(dataclasses.replace(images, table=AS_IS[::-1]))
    assert len({images.sha256, *(other.sha256 for other in altered)}) == 4


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_chance_is_what_the_best_constant_guess_scores_on_the_training_labels(train, test):
    labels = [np.array(part, np.int32) for part in (train, test)]
    images = Images(places(len(train)), labels[0], places(len(test)), labels[1], AS_IS)
    assert images.chance == max(np.mean(labels[0] == guess) for guess in range(10))


# ---- Batches ------------------------------------------------------------------------------


def batches(images, seed=123, workers=4, batch_size=64, augmentation="flip+crop"):
    return Batches(images, seed, workers, batch_size, augmentation)


def same(one, other):
    return one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)


def test_the_published_steps_an_epoch():
    assert steps_per_epoch(50_000, 1024) == 49
    assert steps_per_epoch(1437, 128) == 11
    assert steps_per_epoch(1437, 4096) == 1


def test_a_batch_has_a_row_a_worker(digits):
    batch = batches(digits, workers=8, batch_size=128).train(0, 0)
    assert batch["input"].shape == (8, 16, 32, 32, 3) and batch["input"].dtype == np.float32
    assert batch["target"].shape == (8, 16) and batch["target"].dtype == np.int32


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_batch_made_alone_equals_the_one_made_in_sequence(augmentation):
    images = numbered()
    addresses = list(itertools.product(range(3), range(3)))
    one = batches(images, augmentation=augmentation)
    in_sequence = {address: one.train(*address) for address in addresses}
    for address in reversed(addresses):
        np.random.seed(0)  # nor does it use or depend on the global state
        assert same(batches(images, augmentation=augmentation).train(*address), in_sequence[address])
    assert (images.train_images == places(200)).all()  # nor is the dataset altered


def test_the_order_of_an_epoch_is_drawn_once(monkeypatch):
    drawn, made = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda address: drawn.append(tuple(address)) or made(address))
    permutation.cache_clear()
    for step in range(3):
        batches(numbered(), seed=77).train(1, step)
    assert drawn.count((77, ORDER, 1)) == 1


@pytest.mark.law
def test_another_seed_epoch_or_step_gives_another_order_and_other_crops():
    images = numbered()
    made = [batches(images, seed).train(epoch, step) for seed, epoch, step in itertools.product((1, 2), (0, 1), (0, 1))]
    for one, other in itertools.combinations(made, 2):
        assert (one["target"] != other["target"]).any()
        assert (shift(one["input"][:, 0]) != shift(other["input"][:, 0])).any()


def test_labels_stay_with_their_images():
    batch = batches(numbered()).train(3, 1)
    assert (batch["input"][:, :, 16, 16, 0] == batch["target"] + 1).all()


@pytest.mark.law
def test_an_epoch_visits_no_image_twice(digits):
    one = batches(dataclasses.replace(digits, train_labels=np.arange(1437)), batch_size=128, augmentation="none")
    assert steps_per_epoch(1437, 128) == 11
    visited = np.concatenate([one.train(5, step)["target"].ravel() for step in range(11)])
    assert len(visited) == 1408 == len(set(visited))


def test_a_last_batch_that_runs_short_is_filled_from_the_beginning(digits):
    one = batches(dataclasses.replace(digits, train_labels=np.arange(1437)), batch_size=128, augmentation="none")
    visited = np.concatenate([one.train(5, step)["target"].ravel() for step in range(12)])
    assert set(visited[:1437]) == set(range(1437))
    assert (visited[1437:] == visited[: 12 * 128 - 1437]).all()


def test_workers_crop_independently_and_in_every_way():
    one = batches(numbered(40), workers=2, batch_size=4, augmentation="crop")
    shifts = np.array([shift(one.train(e, s)["input"][:, 0]) for e in range(100) for s in range(10)])  # [1000, R, 2]
    shifts = shifts.reshape(1000, 4)
    counts = np.stack([np.bincount(column.astype(int), minlength=SHIFTS) for column in shifts.T])
    assert counts.shape == (4, SHIFTS)
    # Each of 13 shifts is expected 77 times, with a deviation of 8.4; correlations deviate by 0.032.
    assert (abs(counts - 1000 / SHIFTS) < 5 * 8.4).all()
    assert (abs(np.corrcoef(shifts.T) - np.eye(4)) < 5 * 0.032).all()


def test_a_workers_crop_does_not_depend_on_how_many_there_are():
    two, four = (batches(numbered(), workers=workers, augmentation="crop").train(1, 2)["input"] for workers in (2, 4))
    assert (shift(two[:, 0]) == shift(four[:2, 0])).all()


@pytest.mark.law
def test_no_two_draws_share_a_random_stream(monkeypatch):
    """Nor does the dataset's order with any augmentation, at small addresses and at large ones."""
    streams, made = [], np.random.default_rng

    def recorded(address):
        streams.append((tuple(address), tuple(made(address).integers(0, 2**63, 4))))
        return made(address)

    monkeypatch.setattr(np.random, "default_rng", recorded)
    permutation.cache_clear()
    images = numbered(8)
    numbers = (0, 1, 2, 3, 79, 2**31 - 1)
    for seed, epoch, step in itertools.product(numbers, numbers, numbers[:5]):
        batches(images, seed, workers=4, batch_size=4).train(epoch, step)
    by_address = dict(streams)
    assert len(by_address) == 6 * 6 * (1 + 5 * 4)
    assert len(set(by_address.values())) == len(by_address)


# ---- Augmentation -------------------------------------------------------------------------

IMAGES = places(6)
MIRRORED = {(down, across): IMAGES[:, ::down, ::across] for down in (1, -1) for across in (1, -1)}


def padded(images):
    edge = (PADDING, PADDING)
    return np.pad(images, [(0, 0), edge, edge, (0, 0)])


def windows(images):
    """Every 32×32 window of the padded images, by its top left corner."""
    wide = padded(images)
    corners = itertools.product(range(SHIFTS), repeat=2)
    return {(top, left): wide[:, top : top + 32, left : left + 32] for top, left in corners}


WINDOWS = {mirror: windows(images) for mirror, images in MIRRORED.items()}
SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_crop_is_one_window_of_the_padded_images(seed):
    found = augmented(IMAGES, "crop", seed)
    corners = [corner for corner, window in WINDOWS[1, 1].items() if (window == found).all()]
    assert len(corners) == 1
    assert corners[0] == tuple(shift(found)[0])


@settings(max_examples=50)
@given(SEEDS)
def test_flip_and_crop_is_the_same_window_of_each_image_mirrored_in_one_of_four_ways(seed):
    found = augmented(IMAGES, "flip+crop", seed)
    corners = []
    for corner in WINDOWS[1, 1]:
        fits = np.stack([(of[corner] == found).all(axis=(1, 2, 3)) for of in WINDOWS.values()])  # [mirror, image]
        if (fits.sum(axis=0) == 1).all():
            corners.append(corner)
    assert len(corners) == 1


def test_the_four_ways_of_mirroring_are_equally_frequent():
    found = augmented(places(4000), "flip+crop", 0)
    across = found[:, 16, 17, 2] < found[:, 16, 16, 2]
    down = found[:, 17, 16, 1] < found[:, 16, 16, 1]
    counts = np.bincount(2 * across + down, minlength=4)
    assert (abs(counts - 1000) < 5 * 27.4).all()  # five standard deviations


@given(SEEDS)
def test_no_augmentation_is_the_identity(seed):
    assert (augmented(IMAGES, "none", seed) == IMAGES).all()


@settings(max_examples=60)
@given(seed=SEEDS, kind=st.sampled_from(AUGMENTATIONS), size=st.integers(8, 40), count=st.integers(1, 5))
def test_augmentation_equals_its_definition_on_normalised_images(seed, kind, size, count):
    """The definition, image by image in float32: normalise, mirror, pad by zeros, crop."""
    draw = np.random.default_rng([seed, 1])
    pixels = draw.integers(0, 256, (count, size, size, 3), np.uint8)
    table = draw.standard_normal(256).astype(np.float32)
    before = pixels.copy()
    out = np.zeros(pixels.shape, np.float32)
    augment(pixels, table, kind, np.random.default_rng(seed), out)

    random = np.random.default_rng(seed)
    expected = table[pixels]
    if kind != "none":
        top, left = random.integers(0, SHIFTS, 2)
        mirrored = random.integers(0, 2, (2, count), bool) if kind == "flip+crop" else np.zeros((2, count), bool)
        for n in range(count):
            image = expected[n]
            image = np.fliplr(image) if mirrored[0, n] else image
            image = np.flipud(image) if mirrored[1, n] else image
            wide = np.zeros((size + 2 * PADDING, size + 2 * PADDING, 3), np.float32)
            wide[PADDING:-PADDING, PADDING:-PADDING] = image
            expected[n] = wide[top : top + size, left : left + size]
    assert out.tobytes() == expected.tobytes()
    assert (pixels == before).all()


# ---- Test batches -------------------------------------------------------------------------


@settings(max_examples=30)
@given(count=st.sampled_from([1, 7, 360, 1000, 1001, 2500]), workers=st.integers(1, 40))
def test_the_test_batches_weigh_each_image_once(count, workers):
    blank = np.zeros((count, 1, 1, 1), np.uint8)
    labels = np.arange(count, dtype=np.int32)
    made = list(batches(Images(blank, labels, blank, labels, AS_IS), workers=workers).test())
    label, weight = (np.concatenate([batch[key].ravel() for batch in made]) for key in ("target", "weight"))
    assert (np.bincount(label, weight, minlength=count) == 1).all()
    assert set(weight) <= {0, 1} and weight.dtype == np.float32
    assert len({batch[key].shape for batch in made for key in ("target", "weight")}) == 1
    assert made[0]["target"].shape[0] == workers


def test_the_test_images_are_not_augmented(digits):
    made = list(batches(digits, workers=7).test())
    image = np.concatenate([batch["input"].reshape(-1, 32, 32, 3) for batch in made])
    weight = np.concatenate([batch["weight"].ravel() for batch in made])
    assert (image[weight == 1] == digits.table[digits.test_images]).all()
