"""Every entry of the API reference has an example, and the examples of all docstrings run."""

import doctest
import io
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

import botorch_calib.exceptions
from docs.api_names import documented_names
from docs.docstring_examples import completed, examples
from tests.documentation import DOCS

EXAMPLES = examples()
PUBLIC = {path.rpartition(".")[2]: path for path in documented_names(DOCS / "api")}
EXTRAS = {"ax": "ax", "optuna": "optuna_integration", "xopt": "xopt", "baybe": "baybe"}

# Entries that users only get from the entry after the colon, whose example shows them.
SHOWN_BY = {
    "Arrival": "DelayedProblem",
    "CalibrationReport": "report_from_pits",
    "ChanceConstrainedCandidate": "optimize_chance_constrained",
    "draw_delay": "FixedDelay",
    "NoiseDiagnosis": "noise_diagnosis",
    "Recommendation": "recommend",
    "LedgerSummary": "AsynchronousOptimizer",
    "Trial": "FeedbackLedger",
}
# Interfaces, whose subclasses have examples.
INTERFACES = (
    "Calibrator ContextualFunction ContextualProblem DelayDistribution HeteroscedasticNoise "
    "OutcomeMap QuantileLearner Score Prediction"
).split()
# Internal parts of Ax's generation strategies and of a bound.
PARTS = (
    "CertifiedPoints CertifyingAdapter CertifyingGenerators ClosedFormConfidenceBound "
    "ConstrainedClosedForm PendingAwareModel ReplayedModel SampledSums"
).split()


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.use("Agg", force=True)
        yield
        plt.close("all")


def test_every_entry_of_the_reference_has_an_example() -> None:
    own = {place.partition("::")[2] for place in EXAMPLES}
    excused = {*SHOWN_BY, *INTERFACES, *PARTS, *vars(botorch_calib.exceptions)}
    lacking = {name for name in PUBLIC if not name.isupper() and name[0] != "_"} - own - excused
    assert not lacking, f"{sorted(lacking)}: an example at the end of the docstring"
    assert not own & {*SHOWN_BY, *INTERFACES, *PARTS}, "these need no excuse"


@pytest.mark.parametrize("place", EXAMPLES)
def test_example_runs(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example runs after the code that the site shows before it."""
    for client, module in EXTRAS.items():
        if place.startswith((f"integrations/{client}", f"integrations/_{client}")):
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = "\n".join(completed(EXAMPLES[place].splitlines(), PUBLIC))
    example = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, place, None, 0)
    output = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    result = runner.run(example, out=output.write, clear_globs=False)
    assert result.attempted and not result.failed, output.getvalue()

    values = {type(value).__name__ for value in example.globs.values()} | example.globs.keys()
    shown = {name for name, shown_by in SHOWN_BY.items() if place.endswith(f"::{shown_by}")}
    assert shown <= values
