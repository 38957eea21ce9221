"""Without the client, or with another version, an integration says what to install."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from botorch_calib import integrations
from botorch_calib.integrations import CLIENTS, client_needed


@pytest.mark.parametrize(
    ("client", "package"),
    [
        ("ax", "ax.api.client"),
        ("ax", "ax.storage.transform_registry"),
        ("optuna", "optuna_integration"),
        ("xopt", "xopt"),
    ],
)
def test_the_error_says_what_to_install(
    client: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"botorch_calib.integrations.{client}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install botorch_calib\[{client}\]"):
        importlib.import_module(f"botorch_calib.integrations.{client}")


@pytest.mark.parametrize("found", ["1.2.9", "1.2", "0.5.0.post1"])
def test_another_version_is_named(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "version", lambda package: found)
    match = rf"needs ax-platform>=1.3, and {found} is installed: pip install botorch_calib\[ax\]"
    with pytest.raises(ImportError, match=match), client_needed("ax"):
        pass
    for later in ("1.3", "1.3.1", "1.10", "2.0rc1"):
        monkeypatch.setattr(integrations, "version", lambda package, own=later: own)
        with client_needed("ax"):
            pass


def test_the_versions_are_those_of_the_extras() -> None:
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra, (package, least) in CLIENTS.items():
        assert extras[extra] == [f"{package}>={least}"]


def test_files_that_are_loaded_without_the_import_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ax")
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig
    from ax.storage.botorch_modular_registry import REVERSE_MODEL_REGISTRY
    from ax.storage.json_store.registry import CORE_DECODER_REGISTRY

    from botorch_calib.integrations.ax import calibrated_generation_strategy
    from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy

    for make, registry, name in (
        (calibrated_generation_strategy, REVERSE_MODEL_REGISTRY, "ax.ReplayedModel"),
        (
            chance_constrained_generation_strategy,
            CORE_DECODER_REGISTRY,
            "ax_decisions.CertifyingGenerators",
        ),
    ):
        client = Client()
        client.configure_experiment([RangeParameterConfig("a", (0, 1), "float")])
        client.configure_optimization("y", outcome_constraints=["z <= 1"])
        client.set_generation_strategy(make(client))
        stored = client._to_json_snapshot()
        monkeypatch.delitem(registry, f"botorch_calib.integrations.{name}")
        with pytest.raises(Exception, match=f"botorch_calib.integrations.{name}"):
            Client._from_json_snapshot(stored)
