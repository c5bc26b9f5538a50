"""The training script: a short run, its bigram baseline, and what it says to bad options."""

import argparse
import math

import jax
import numpy as np
import pytest

from models.gpt import GPTConfig
from scripts import train_gpt


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    config = GPTConfig(vocab=256, sequence=16, num_layers=1, num_heads=2, d_model=8)
    monkeypatch.setattr(train_gpt, "CONFIG", config)


@pytest.fixture(autouse=True)
def user_promotion():
    # the script promotes as a user's does: optax's bias correction raises a float to an int32 array
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_one_device_run_scores_and_samples(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be or not to be, that is the question. " * 50)
    train_gpt.main(
        ["--mesh", "1", "--steps", "3", "--batch", "2", "--text", str(text), "--explain"]
    )
    out = capsys.readouterr().out
    assert "nothing to plan" in out
    assert "held-out nats/byte: GPT" in out
    assert out.rstrip().splitlines()[-1]


def test_a_predicted_time_says_for_which_machine(capsys):
    options = argparse.Namespace(steps=1, batch=2, words="free", explain=False)
    train_gpt.prepare({"dp": 2}, options)
    assert (
        "Times above are priced for 'cpu'; simulated devices share the cores of this host and "
        "are slower\n"
    ) in capsys.readouterr().out


def test_bigram_of_alternating_bytes_is_nearly_certain():
    alternating = np.frombuffer(b"ab" * 500, np.uint8)
    assert train_gpt.bigram_nats(alternating, alternating) < 0.01


def test_bigram_of_unseen_bytes_falls_back_to_the_unigram():
    seen = np.frombuffer(b"aaaa", np.uint8)
    nats = train_gpt.bigram_nats(seen, np.frombuffer(b"zz", np.uint8))
    assert math.isclose(nats, -math.log(1 / (4 + 256)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--mesh", "dp"], "mesh 'dp' has the item 'dp'"),
        (["--mesh", "dp=16"], "needs 16 devices, there are 8"),
        (["--mesh", "dp=8", "--words", "megatron"], "a mesh with an axis 'tp'"),
        (["--words", "zero"], "invalid choice: 'zero'"),
        (["--text", "no/such/file"], "No such file or directory: 'no/such/file'"),
    ],
)
def test_bad_option_is_one_clear_error(options, message, capsys):
    with pytest.raises(SystemExit):
        train_gpt.main(options)
    assert message in capsys.readouterr().err


def test_short_text_is_refused(tmp_path, capsys):
    (tmp_path / "short").write_bytes(b"short")
    with pytest.raises(SystemExit):
        train_gpt.main(["--text", str(tmp_path / "short")])
    assert "the text has 5 bytes" in capsys.readouterr().err
