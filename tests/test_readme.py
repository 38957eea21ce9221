"""The README's code runs as printed."""

import re
from pathlib import Path

import pytest
import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig

from tests.asynchronous.objectives import square

README = Path(__file__).parents[1] / "README.md"


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)


def test_code_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a ledger is made
    torch.manual_seed(0)
    client = Client()
    client.configure_experiment([RangeParameterConfig("a", bounds=(0, 1), parameter_type="float")])
    client.configure_optimization("y")
    X = torch.rand(8, 2, dtype=torch.double)
    names: dict[str, object] = {
        "__name__": "__main__",
        "X": X,
        "Y": torch.sin(4 * X).sum(dim=-1, keepdim=True),
        "d": 2,
        "bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double),
        "X_pending": torch.rand(3, 2, dtype=torch.double),
        "accuracy": square,
        "client": client,
    }
    blocks = code_blocks()
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "run.sqlite").exists()
    candidate = names["candidate"]
    assert isinstance(candidate, torch.Tensor)
    assert candidate.shape == (1, 2)
    assert ((candidate >= 0) & (candidate <= 1)).all()
    assert client._generation_strategy is names["strategy"]


def test_spawned_processes_import_a_script_without_running_it() -> None:
    """Where the script is the README's, they must find nothing to do, or they fail at once."""
    (block,) = (block for block in code_blocks() if "ProcessPoolExecutor" in block)
    names: dict[str, object] = {"__name__": "__mp_main__"}  # nor the script's other names
    exec(compile(block, str(README), "exec"), names)
    assert "optimizer" not in names
